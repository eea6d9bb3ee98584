"""Construct a user's module, and locate the attention inside it."""

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import BadFile
from headwise.lang import Text
from headwise.verify.oracle.jobs import Weights
from headwise.verify.target import not_recognised, one_line
from headwise.verify.target.parameter_names import bind
from headwise.verify.target.signature import read_signature

EMBED = (
    *("embed_dim", "d_model", "dim", "hidden_size", "n_embd", "n_embed", "embed_size", "emb_dim"),
    *("emb_size", "model_dim", "dmodel", "embedding_dim", "hidden_dim", "hid_dim", "num_hiddens"),
    *("d_in", "d_out", "in_dim", "out_dim", "input_dim", "output_dim", "channels", "features"),
    *("key_size", "query_size", "value_size", "d_embed", "embed", "width", "kdim", "vdim", "emb"),
    *("d", "e", "in_features", "out_features", "size", "model_size", "embedding_size"),
)
HEADS = (
    *("num_heads", "n_heads", "nhead", "h", "heads", "n_head", "num_attention_heads", "nheads"),
    *("head_num", "number_of_heads", "head_count", "n_kv_heads", "num_kv_heads", "kv_heads"),
    *("num_key_value_heads", "num_head"),
)
HEAD_DIM = ("head_dim", "d_k", "d_v", "d_q", "dim_head", "d_head", "head_size", "dk", "dv", "depth")
DROPOUT = (
    *("dropout", "p", "attn_pdrop", "resid_pdrop", "dropout_rate", "drop", "attn_drop"),
    *("proj_drop", "attention_dropout", "dropout_p", "attn_dropout", "p_dropout", "dropout_prob"),
)
ATTENTION_DROPOUT = tuple(name for name in DROPOUT if name not in ("resid_pdrop", "proj_drop"))
LENGTH = (
    *("block_size", "max_len", "max_seq_len", "seq_len", "context_length", "max_length"),
    *("context_size", "max_position_embeddings", "n_ctx", "ctx_len", "sequence_length"),
)
CONFIG = ("config", "cfg", "args", "conf", "hparams")
LONGEST = 64  # the length given to constructors that require one


def make(cls: type[nn.Module], embed_dim: int, heads: int, dropout: float = 0.0) -> nn.Module:
    """Construct an instance, with its arguments recognised by name.

    Raises:
        BadFile: if a required argument has an unknown name, or the constructor raises.
    """
    return _made(cls, arguments_of(cls, embed_dim, heads, dropout))


def arguments_of(
    cls: type[nn.Module], embed_dim: int, heads: int, dropout: float = 0.0
) -> dict[str, object]:
    """The arguments that `make` constructs a class with; raises `BadFile` as it does."""
    arguments = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        known, value = _value(name, embed_dim, heads, dropout)
        required = parameter.default is parameter.empty
        if known and (required or (parameter.default is not None and name not in LENGTH)):
            arguments[name] = value
        elif required:
            reason = Text(
                "the argument {argument!r} of {class_name} is not recognised",
                argument=name,
                class_name=cls.__name__,
            )
            raise not_recognised(reason)
    return arguments


def made(target: object, embed_dim: int, heads: int) -> nn.Module:
    """A module of a size: a new instance of a class, or the given module."""
    if isinstance(target, nn.Module):
        return target
    if isinstance(target, type) and issubclass(target, nn.Module):
        return make(target, embed_dim, heads)
    raise not_recognised(Text("{target!r} is no torch.nn.Module", target=target))


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module itself in float32, else a copy in another dtype."""
    return module if dtype == torch.float32 else deepcopy(module).to(dtype)


def takes_dropout(cls: type[nn.Module]) -> bool:
    """Whether its constructor has an argument for dropout on the weights, or a config."""
    names = inspect.signature(cls).parameters
    return any(name in names for name in (*ATTENTION_DROPOUT, *CONFIG))


def _made(cls: type[nn.Module], arguments: dict[str, Any]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            return cls(**arguments)
        except (Exception, SystemExit) as error:
            shown = ", ".join(f"{k}={v}" for k, v in arguments.items() if k not in CONFIG)
            reason = Text(
                "{class_name}({arguments}) raises {error}",
                class_name=cls.__name__,
                arguments=shown,
                error=one_line(error),
            )
            raise not_recognised(reason) from error


def _value(name: str, embed_dim: int, heads: int, dropout: float) -> tuple[bool, object]:
    if name in CONFIG:
        return True, _config(embed_dim, heads, dropout)
    values: tuple[tuple[tuple[str, ...], object], ...] = (
        (EMBED, embed_dim),
        (HEADS, heads),
        (HEAD_DIM, embed_dim // heads),
        (ATTENTION_DROPOUT, dropout),
        (DROPOUT, 0.0),
        (LENGTH, LONGEST),
        (("batch_first",), True),
    )
    return next(((True, value) for names, value in values if name.lower() in names), (False, None))


def _config(embed_dim: int, heads: int, dropout: float) -> SimpleNamespace:
    """A config object with every recognised name, as nanoGPT expects."""
    every = (*EMBED, *HEADS, *HEAD_DIM, *DROPOUT, *LENGTH)
    values = {name: _value(name, embed_dim, heads, dropout)[1] for name in every}
    return SimpleNamespace(**values, bias=True, qkv_bias=True, batch_first=True)


LONGFORMER = ("transformers.models.longformer.modeling_longformer", "LongformerSelfAttention")


class Longformer(nn.Module):
    """transformers' Longformer without global tokens; pads the sequence as the model around it."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.num_heads = attention.num_heads

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(B, L, E) to the same."""
        batch, length, _ = hidden_states.shape
        window = 2 * int(self.attention.one_sided_attn_window_size)  # type: ignore[arg-type]
        more = max(window, -(-length // window) * window) - length
        padded = nn.functional.pad(hidden_states, (0, 0, 0, more))
        hidden = torch.arange(length + more, device=padded.device).expand(batch, -1) >= length
        output: Tensor = self.attention(
            padded,
            attention_mask=padded.new_zeros(hidden.shape).masked_fill(hidden, -10000.0),
            is_index_masked=hidden,
            is_index_global_attn=torch.zeros_like(hidden),
            is_global_attn=False,
        )[0]
        return output[:, :length]


def wrap_known_module(module: nn.Module) -> nn.Module:
    """The module, wrapped where it is one of the modules listed here."""
    name = (type(module).__module__, type(module).__name__)
    return Longformer(module) if name == LONGFORMER else module


NORM = re.compile(r"(?i)(^|[._])(layer_?norm|norm\d*|ln(_?\w+)?|rms_?norm)\.(weight|bias)$")
"""Parameters of a norm around an attention."""
INNER = re.compile(r"(?i)[qk]_?(layer)?norm")
"""Parameters of a norm of q or k, which is inside the attention."""


def norms(module: nn.Module) -> tuple[str, ...]:
    """The paths of the norms in a module that are not of q or k."""
    names = (name for name, _ in module.named_parameters())
    result = (n.rpartition(".")[0] for n in names if NORM.search(n) and not INNER.search(n))
    return tuple(dict.fromkeys(path for path in result if path))


@contextmanager
def bypassed(module: nn.Module, paths: tuple[str, ...]) -> Iterator[None]:
    """A context in which the submodules at these paths return their input."""
    inner = map(module.get_submodule, paths)
    handles = [m.register_forward_hook(lambda _m, args, _y: args[0]) for m in inner]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def find_attention(module: nn.Module, weights: Weights, heads: int) -> str:
    """The path of the only attention inside a module; empty where there is none or several."""
    result: list[str] = []
    for path, inner in module.named_modules():
        inside = not path or any(path.startswith(f"{other}.") for other in result)
        if not inside and not norms(inner) and is_attention(inner, weights, heads):
            result.append(path)
    return result[0] if len(result) == 1 else ""


def is_attention(module: nn.Module, weights: Weights, heads: int) -> bool:
    """Whether a module is an attention that can be called."""
    try:
        bind(module, weights, heads)
        read_signature(module.forward, "forward")
    except BadFile:
        return False
    return True
