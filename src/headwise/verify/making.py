"""Making somebody's module: which constructor argument is what, by its name."""

import inspect
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from headwise.lang import Text
from headwise.verify.adapter import not_recognised

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
LONGEST = 64
"""The length given to modules that want one when they are made."""


def make(cls: type[nn.Module], embed_dim: int, heads: int, dropout: float = 0.0) -> nn.Module:
    """An instance with its arguments filled in by their names.

    Raises:
        BadFile: if a required argument has an unknown name, or the constructor raises.
    """
    arguments = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        found, value = _value(name, embed_dim, heads, dropout)
        required = parameter.default is parameter.empty
        if found and (required or (parameter.default is not None and name not in LENGTH)):
            arguments[name] = value
        elif required:
            raise not_recognised(
                Text(
                    "the argument {name!r} of {cls_} is not recognised",
                    name=name,
                    cls_=cls.__name__,
                )
            )
    return _made(cls, arguments)


def made(target: object, embed_dim: int, heads: int) -> nn.Module:
    """A module for a size: of a class an instance, and a module as it is."""
    if isinstance(target, nn.Module):
        return target
    if isinstance(target, type) and issubclass(target, nn.Module):
        return make(target, embed_dim, heads)
    raise not_recognised(Text("{target!r} is no torch.nn.Module", target=target))


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module as it was made where float32 is asked for, else a copy in another dtype."""
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
            said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            given = ", ".join(f"{k}={v}" for k, v in arguments.items() if k not in CONFIG)
            raise not_recognised(
                Text("{cls_}({given}) raises {said}", cls_=cls.__name__, given=given, said=said)
            ) from error


def _value(name: str, embed_dim: int, heads: int, dropout: float) -> tuple[bool, object]:
    """Whether the name is known, and what it gets."""
    if name in CONFIG:
        return True, _config(embed_dim, heads, dropout)
    known: tuple[tuple[tuple[str, ...], object], ...] = (
        (EMBED, embed_dim),
        (HEADS, heads),
        (HEAD_DIM, embed_dim // heads),
        (ATTENTION_DROPOUT, dropout),
        (DROPOUT, 0.0),
        (LENGTH, LONGEST),
        (("batch_first",), True),
    )
    return next(((True, value) for names, value in known if name.lower() in names), (False, None))


def _config(embed_dim: int, heads: int, dropout: float) -> SimpleNamespace:
    """A config with every name that is known, as nanoGPT and many tutorials want it."""
    every = (*EMBED, *HEADS, *HEAD_DIM, *DROPOUT, *LENGTH)
    values = {name: _value(name, embed_dim, heads, dropout)[1] for name in every}
    return SimpleNamespace(**values, bias=True, qkv_bias=True, batch_first=True)
