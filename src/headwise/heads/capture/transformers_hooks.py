"""Hooks for transformers models, which look up their attention function by name.

During a capture, the configuration names a function of this file, which calls the original function
of the model and then records its q, k and mask.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from headwise.call import Call
from headwise.errors import BadValue, MissingExtra
from headwise.heads.capture.block_weights import AttentionTerms
from headwise.heads.capture.pattern import CallPattern, Pattern, TensorPattern
from headwise.heads.capture.recorder import Recorder
from headwise.masks import from_tensor
from headwise.nn.huggingface import NAME, register
from headwise.nn.huggingface.attention_function import mask_and_offset

OWN = {
    "sdpa": "headwise_over_fused",
    "eager": "headwise_over_plain",
    NAME: "headwise_over_headwise",
}
"""The registered names of the recording functions, by the implementation that they call."""

_recorder: ContextVar[Recorder | None] = ContextVar("headwise_recorder", default=None)


@contextmanager
def transformers_hooks(recorder: Recorder) -> Iterator[None]:
    """Record every attention of the transformers modules of the model inside a ``with`` block.

    Raises `BadValue` if an implementation is not supported or is already being recorded, and
    `MissingExtra` if transformers is not installed.
    """
    before = _implementations(recorder.model)
    if not before:
        yield
        return
    _register()
    for config, name in before:
        config._attn_implementation = OWN[name]
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)
        for config, name in before:
            config._attn_implementation = name


def _register() -> None:
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise MissingExtra.of("transformers", "inspect") from error
    register()
    masks: Mapping[str, Any] = AttentionMaskInterface()  # type: ignore[no-untyped-call]
    functions = (("sdpa", _record_sdpa), ("eager", _record_eager), (NAME, _record_headwise))
    for name, function in functions:
        AttentionInterface.register(OWN[name], function)
        AttentionMaskInterface.register(OWN[name], masks[name])


def _implementations(model: nn.Module) -> list[tuple[Any, str]]:
    """Return every configuration in the model with its implementation, outermost first."""
    implementations = {}
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if not hasattr(config, "_attn_implementation"):
            continue
        name = config._attn_implementation or "eager"
        if name in OWN.values():
            raise BadValue("model: already being captured; leave the other capture first")
        if name not in OWN:
            raise BadValue(
                "model: capture supports the implementations 'sdpa', 'eager' and 'headwise', got "
                "'{name}'; use model.set_attn_implementation('sdpa')",
                name=name,
            )
        implementations[id(config)] = (config, name)
    return list(implementations.values())


def _record_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Run and record "sdpa"; without a mask, the call or the module decides if it is causal."""
    inner = _table(module)["sdpa"]
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    answer = inner(module, query, key, value, mask, **options)
    causal = bool(causal) and mask is None and query.shape[2] > 1
    bias = options.get("position_bias")
    pattern = TensorPattern(key.shape[2], query.device, mask, causal, bias)
    _record(module, lambda: _terms(query, key, value, pattern, options), answer[0])
    return answer  # type: ignore[no-any-return]


def _record_eager(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Run and record "eager", which is causal only through its mask."""
    inner = getattr(_home(module), "eager_attention_forward", None)
    if inner is None:
        raise BadValue(
            "model: the eager attention of {name} is not a separate function; load "
            "the model with attn_implementation='sdpa'",
            name=type(module).__name__,
        )
    answer = inner(module, query, key, value, mask, **options)
    pattern = TensorPattern(key.shape[2], query.device, mask, bias=options.get("position_bias"))
    _record(module, lambda: _terms(query, key, value, pattern, options), answer[0])
    return answer  # type: ignore[no-any-return]


def _record_headwise(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Run and record "headwise", the implementation of a converted model."""
    answer = _table(module)[NAME](module, query, key, value, mask, **options)

    def terms() -> AttentionTerms:
        seen, offset = mask_and_offset(module, query, key, mask, options.get("is_causal"))
        bias = options.get("position_bias")
        seen = seen if bias is None else seen & from_tensor(bias.detach(), "b h q k")
        q, k, v = query.detach(), key.detach(), value.detach()
        call = Call.of(q, k, v, mask=seen, scale=options.get("scaling"), offset=offset)
        return _terms(q, k, v, CallPattern(call), options | {"scaling": call.scale})

    _record(module, terms, answer[0])
    return answer  # type: ignore[no-any-return]


def _table(module: nn.Module) -> Any:
    """Return the table of attention functions that the module uses, if possible its file's."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return getattr(_home(module), "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)


def _home(module: nn.Module) -> object:
    return sys.modules[type(module).__module__]


def _terms(
    query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, options: dict[str, Any]
) -> AttentionTerms:
    q, k, v, scale = query.detach(), key.detach(), value.detach(), options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    softcap, sink = options.get("softcap"), options.get("s_aux")
    return AttentionTerms(q, k, v, scale, pattern, softcap=softcap, sink=sink)


def _record(module: nn.Module, terms: Callable[[], AttentionTerms], answer: Tensor) -> None:
    recorder = _recorder.get()
    if recorder is not None and recorder.owns(module):
        with torch.no_grad():
            recorder.take(module, terms(), answer.detach())
