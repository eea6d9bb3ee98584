"""Attention of a transformers model, through the function that its attentions look up by name.

While a capture is open, the model's name for its implementation stands for a function here: it lets
the model's own function compute the answer, then measures the same q, k and mask. Afterwards the
model has its own name back.
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
from headwise.heads.capture.pattern import CallPattern, TensorPattern
from headwise.heads.capture.recorder import Recorder
from headwise.masks import from_tensor
from headwise.nn.huggingface import NAME, register
from headwise.nn.huggingface.attention_function import mask_and_offset

OWN = {
    "sdpa": "headwise_over_fused",
    "eager": "headwise_over_plain",
    NAME: "headwise_over_headwise",
}
"""The names we register, by the implementation whose answers they return."""

_recorder: ContextVar[Recorder | None] = ContextVar("headwise_recorder", default=None)


@contextmanager
def transformers_hooks(recorder: Recorder) -> Iterator[None]:
    """While this is open, every attention of the model's transformers parts is recorded.

    Raises:
        BadValue: if one of them runs on another implementation or is already being captured.
        MissingExtra: if transformers is not installed.
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
    """Make our names known to transformers; doing so again changes nothing."""
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
    """Every configuration in the model with the implementation it runs on, outermost first."""
    found = {}
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            found[id(config)] = (config, _known(config._attn_implementation or "eager"))
    return list(found.values())


def _known(name: str) -> str:
    if name in OWN.values():
        raise BadValue("model: it is already being captured; close that capture first")
    if name not in OWN:
        raise BadValue(
            "model: capture works over 'sdpa', 'eager' and 'headwise', got '{name}', "
            "which runs fused and shows no weights; use "
            "model.set_attn_implementation('sdpa')",
            name=name,
        )
    return name


def _record_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The model's "sdpa" answer; without a mask it is causal where the module says so."""
    inner = _table(module)["sdpa"]
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    answer = inner(module, query, key, value, mask, **options)
    causal = bool(causal) and mask is None and query.shape[2] > 1
    _record(module, lambda: _terms(query, key, value, mask, causal, options), answer[0])
    return answer  # type: ignore[no-any-return]


def _record_eager(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The model's "eager" answer; its mask says all there is about order."""
    inner = getattr(_home(module), "eager_attention_forward", None)
    if inner is None:
        name = type(module).__name__
        raise BadValue(
            "model: {name} has no eager attention that can be called from outside; load "
            "the model with attn_implementation='sdpa'",
            name=name,
        )
    answer = inner(module, query, key, value, mask, **options)
    _record(module, lambda: _terms(query, key, value, mask, False, options), answer[0])
    return answer  # type: ignore[no-any-return]


def _record_headwise(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The answer of a converted model, which runs on our own attention."""
    answer = _table(module)[NAME](module, query, key, value, mask, **options)

    def terms() -> AttentionTerms:
        seen, offset = mask_and_offset(module, query, key, mask, options.get("is_causal"))
        bias = options.get("position_bias")
        seen = seen if bias is None else seen & from_tensor(bias.detach(), "b h q k")
        scale = options.get("scaling")
        q, k, v = query.detach(), key.detach(), value.detach()
        call = Call.of(q, k, v, mask=seen, scale=scale, offset=offset)
        return AttentionTerms(
            q=q,
            k=k,
            v=v,
            scale=call.scale,
            pattern=CallPattern(call),
            softcap=options.get("softcap"),
            sink=options.get("s_aux"),
        )

    _record(module, terms, answer[0])
    return answer  # type: ignore[no-any-return]


def _table(module: nn.Module) -> Any:
    """The table in which the module looks its attention up: that of its file, if it has its own."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return getattr(_home(module), "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)


def _home(module: nn.Module) -> object:
    """The file of transformers that the module is written in."""
    return sys.modules[type(module).__module__]


def _terms(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, causal: bool, options: dict[str, Any]
) -> AttentionTerms:
    scale = options.get("scaling")
    return AttentionTerms(
        q=query.detach(),
        k=key.detach(),
        v=value.detach(),
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        pattern=TensorPattern(
            keys=key.shape[2],
            device=query.device,
            mask=mask,
            causal=causal,
            bias=options.get("position_bias"),
        ),
        softcap=options.get("softcap"),
        sink=options.get("s_aux"),
    )


def _record(module: nn.Module, terms: Callable[[], AttentionTerms], answer: Tensor) -> None:
    recorder = _recorder.get()
    if recorder is not None and recorder.owns(module):
        with torch.no_grad():
            recorder.take(module, terms(), answer.detach())
