"""What a constructor's argument could be, by its name; the values that it could take."""

import inspect
import re
from dataclasses import dataclass
from typing import Literal

import torch

# fmt: off
Kind = Literal["embed", "heads", "kv_heads", "head_dim", "dropout", "length", "yes", "causal",
               "device", "dtype", "config", ""]
# fmt: on
"""The meaning of an argument; "" where its name says nothing."""

EMBED = (
    *("embed_dim", "d_model", "dim", "hidden_size", "n_embd", "n_embed", "embed_size", "emb_dim"),
    *("emb_size", "model_dim", "dmodel", "embedding_dim", "hidden_dim", "hid_dim", "num_hiddens"),
    *("d_in", "d_out", "in_dim", "out_dim", "input_dim", "output_dim", "channels", "features"),
    *("key_size", "query_size", "value_size", "d_embed", "embed", "width", "kdim", "vdim", "emb"),
    *("d", "e", "in_features", "out_features", "size", "model_size", "embedding_size"),
)
HEADS = (
    *("num_heads", "n_heads", "nhead", "h", "heads", "n_head", "num_attention_heads", "nheads"),
    *("head_num", "number_of_heads", "head_count", "num_head"),
)
KV_HEADS = ("n_kv_heads", "num_kv_heads", "kv_heads", "num_key_value_heads")
HEAD_DIM = ("head_dim", "d_k", "d_v", "d_q", "dim_head", "d_head", "head_size", "dk", "dv", "depth")
DROPOUT = ("p", "resid_pdrop", "proj_drop")
LENGTH = (
    *("block_size", "max_len", "max_seq_len", "seq_len", "context_length", "max_length"),
    *("context_size", "max_position_embeddings", "n_ctx", "ctx_len", "sequence_length"),
)
CONFIG = ("config", "cfg", "args", "conf", "hparams", "params", "options", "opt", "hp")
YES = ("batch_first", "bias", "qkv_bias", "use_bias", "is_decoder")
LONGEST = 64  # the length given to constructors that require one

SIZES = frozenset(("dim", "dims", "size", "width", "features", "feats", "channels", "d", "hidden"))
WIDE = SIZES | {"units", "model", "embed", "emb", "embd", "embedding", "feat", "state", "hiddens"}
COUNTED_OTHERWISE = frozenset(("vocab", "layer", "layers", "ff", "ffn", "mlp", "batch", "kernel"))


def kind_of(name: str) -> Kind:
    """The likely meaning of an argument.

    Example:
        >>> [kind_of(name) for name in ("d_model", "attn_heads", "dim_head", "num_kv_groups", "x")]
        ['embed', 'heads', 'head_dim', 'kv_heads', '']
    """
    lower = name.lower()
    words = set(
        filter(None, re.split(r"[_\d]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
    )
    exact: tuple[tuple[tuple[str, ...], Kind], ...] = (
        (EMBED, "embed"),
        (HEADS, "heads"),
        (KV_HEADS, "kv_heads"),
        (HEAD_DIM, "head_dim"),
        (LENGTH, "length"),
        (DROPOUT, "dropout"),
        (CONFIG, "config"),
        (YES, "yes"),
    )
    known = next((kind for names, kind in exact if lower in names), None)
    if known:
        return known
    if words & COUNTED_OTHERWISE:
        return ""
    if "drop" in lower:
        return "dropout"
    if "bias" in words and not words & SIZES:
        return "yes"
    if "device" in words or "dtype" in words:
        return "device" if "device" in words else "dtype"
    if "causal" in lower:
        return "causal"
    return _counted(words, lower)


def _counted(words: set[str], lower: str) -> Kind:
    """The meaning of a name of a number: words for heads, for sizes, for lengths."""
    shared = "kv" in words or {"key", "value"} <= words or "groups" in words
    headed = bool(words & {"head", "heads", "nhead", "nheads"}) or lower.endswith("heads")
    if shared:
        return "head_dim" if words & SIZES else "kv_heads"
    if headed:
        return "head_dim" if words & SIZES else "heads"
    if words & {"len", "length", "ctx", "context", "positions", "seq"} and not words & {"dim"}:
        return "length"
    return "embed" if words & WIDE else ""


def known_exactly(name: str) -> bool:
    """Whether the full name of the argument is a known name, not only a word in it."""
    return name.lower() in {*EMBED, *HEADS, *KV_HEADS, *HEAD_DIM, *LENGTH}


def acts_on_weights(name: str) -> bool:
    """Whether a dropout of this name is likely that of the attention weights."""
    return not re.search(
        r"(?i)resid|proj|out(put)?_|path|ffn|hidden|embd", name.replace("dropout", "")
    )


@dataclass(frozen=True)
class ConstructionSizes:
    """E, H and D of an attention that is to be constructed, and G where it is stated."""

    embed_dim: int
    heads: int
    kv_heads: int | None = None

    @property
    def head_dim(self) -> int:
        """D."""
        return self.embed_dim // self.heads

    @property
    def groups(self) -> tuple[int, ...]:
        """The numbers of key/value heads to try: fewer than heads first."""
        if self.kv_heads is not None:
            return (self.kv_heads, self.heads // max(self.kv_heads, 1))
        divisors = [n for n in range(self.heads - 1, 1, -1) if self.heads % n == 0]
        return (*divisors, self.heads, 1)


def values_of(parameter: inspect.Parameter, sizes: ConstructionSizes) -> tuple[object, ...]:
    """The values to try for a constructor's argument, the likely ones first.

    An empty tuple means to leave the argument at its default.
    """
    kind, default = kind_of(parameter.name), parameter.default
    numbers = (sizes.embed_dim, sizes.heads, sizes.head_dim)
    named = {
        "embed": (sizes.embed_dim, sizes.head_dim, sizes.heads),
        "heads": (sizes.heads, sizes.head_dim, sizes.embed_dim),
        "kv_heads": sizes.groups,
        "head_dim": (sizes.head_dim, sizes.heads, sizes.embed_dim),
        "length": (LONGEST, 7),
        "yes": (True, False),
        "causal": (False, True),
        "device": ("cpu",),
        "dtype": (torch.float32,),
    }
    required = default is parameter.empty
    if parameter.name == "batch_first":
        return (True,)
    if kind in ("embed", "heads") and known_exactly(parameter.name) and len(parameter.name) > 2:
        named = {kind: named[kind][:1]}  # it cannot mean anything else
    if kind in named and (required or _replaces(kind, parameter)):
        own = () if required or kind == "kv_heads" else (default,)
        return tuple(dict.fromkeys((*named[kind], *own)))
    if required and re.search(r"(?i)temp|scal", parameter.name):
        return (sizes.head_dim**0.5, sizes.head_dim**-0.5, 1.0, *numbers)
    if required:
        return _by_type(parameter.annotation, numbers)
    plain = isinstance(default, int) and not isinstance(default, bool)
    return tuple(dict.fromkeys((default, *numbers))) if plain and kind != "length" else ()


def _replaces(kind: Kind, parameter: inspect.Parameter) -> bool:
    """Whether a size replaces the default of an argument."""
    if kind == "kv_heads":
        return parameter.default is None or isinstance(parameter.default, int)
    number = isinstance(parameter.default, int) and not isinstance(parameter.default, bool)
    return kind in ("embed", "heads", "head_dim") and number and known_exactly(parameter.name)


def _by_type(annotation: object, numbers: tuple[int, int, int]) -> tuple[object, ...]:
    word = str(getattr(annotation, "__name__", annotation)).lower()
    if "bool" in word:
        return (False, True)
    if "float" in word:
        return (0.0, 1.0)
    if "int" in word:
        return (*numbers, LONGEST, 1)
    if "str" in word or "device" in word:
        return ("cpu",)
    return (*numbers, 0.0, True, LONGEST, None, "cpu")
