"""Attention of a running transformers model, without changing what it answers.

transformers 5 looks an attention function up by name. While a `capture` is open, the model's name
stands for a function here: it lets the model's own function compute the answer, then measures the
same q, k and mask a block of queries at a time. Afterwards the model has its own name back.
"""

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue, MissingExtra
from headwise.heads.capture.recorder import Recorder
from headwise.heads.capture.weights import Terms
from headwise.heads.names import Head

OWN = {"sdpa": "headwise_over_fused", "eager": "headwise_over_plain"}
"""The names we register, by the implementation whose answers they return."""

_recorder: ContextVar[Recorder | None] = ContextVar("headwise_recorder", default=None)


@contextmanager
def capture(
    model: nn.Module, *, heads: Collection[Head] = (), separators: Collection[int] = ()
) -> Iterator[Recorder]:
    """Measure every head of a model while it runs.

    Args:
        model: a transformers (>= 5) model in eval mode, running on "sdpa" or "eager".
        heads: the heads whose full weights are kept; statistics are kept for all.
        separators: the ids of special tokens such as [SEP], for the share on separators.

    Yields:
        A `Recorder`: its ``statistics`` add up over all passes; ``weights`` are the last pass's.

    Raises:
        BadType: if the model is not one of transformers.
        BadValue: if it is in training mode, runs on another implementation, never calls its
            attention through transformers' interface, is already being captured, is given a
            cache of earlier tokens, or computes something that is not known here.
        MissingExtra: if transformers is not installed.

    Example:
        with capture(model) as seen:
            model(**inputs)
        seen.statistics.value(PREVIOUS, Head.parse("L0H2"))
    """
    _register()
    before = _implementations(model)
    recorder = Recorder(model, frozenset(heads), frozenset(separators))
    for config, name in before:
        config._attn_implementation = OWN[name]
    token = _recorder.set(recorder)
    hook = model.register_forward_pre_hook(recorder.start, with_kwargs=True)
    try:
        yield recorder
    finally:
        hook.remove()
        _recorder.reset(token)
        for config, name in before:
            config._attn_implementation = name
    recorder.finish()


def _register() -> None:
    """Make our names known to transformers; doing so again changes nothing."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise MissingExtra.of("transformers", "inspect") from error
    masks: Mapping[str, Any] = AttentionMaskInterface()  # type: ignore[no-untyped-call]
    for own, name in ((_over_fused, "sdpa"), (_over_plain, "eager")):
        AttentionInterface.register(OWN[name], own)
        AttentionMaskInterface.register(OWN[name], masks[name])


def _implementations(model: nn.Module) -> list[tuple[Any, str]]:
    """Every configuration in the model with the implementation it runs on, outermost first."""
    if not hasattr(getattr(model, "config", None), "_attn_implementation"):
        raise BadType(
            f"model: expected a transformers model, got {type(model).__name__}; load one with "
            "transformers.AutoModel.from_pretrained(...)",
            f"model：应为 transformers 模型，收到 {type(model).__name__}；请用 "
            "transformers.AutoModel.from_pretrained(...) 加载",
        )
    if model.training:
        raise BadValue(
            "model: expected eval mode, where dropout does nothing; call model.eval() first",
            "model：应处于 eval 模式（不做 dropout）；请先调用 model.eval()",
        )
    found = {}
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            found[id(config)] = (config, _known(config._attn_implementation or "eager"))
    return list(found.values())


def _known(name: str) -> str:
    if name in OWN.values():
        raise BadValue(
            "model: it is already being captured; close that capture first",
            "model：该模型正在被捕获；请先结束那一次捕获",
        )
    if name not in OWN:
        raise BadValue(
            f"model: capture works over 'sdpa' and 'eager', got '{name}'; load the model with "
            "attn_implementation='sdpa'",
            f"model：仅支持 'sdpa' 和 'eager'，收到 '{name}'；请用 "
            "attn_implementation='sdpa' 加载模型",
        )
    return name


def _over_fused(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The model's "sdpa" answer; without a mask it is causal where the module says so."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    inner = getattr(_home(module), "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)["sdpa"]
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    answer = inner(module, query, key, value, mask, **options)
    causal = bool(causal) and mask is None and query.shape[2] > 1
    _record(module, _terms(query, key, value, mask, causal, options), answer[0])
    return answer  # type: ignore[no-any-return]


def _over_plain(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The model's "eager" answer; its mask says all there is about order."""
    inner = getattr(_home(module), "eager_attention_forward", None)
    if inner is None:
        name = type(module).__name__
        raise BadValue(
            f"model: {name} has no eager attention that can be called from outside; load the model "
            "with attn_implementation='sdpa'",
            f"model：{name} 没有可从外部调用的 eager 注意力；请用 "
            "attn_implementation='sdpa' 加载模型",
        )
    answer = inner(module, query, key, value, mask, **options)
    _record(module, _terms(query, key, value, mask, False, options), answer[0])
    return answer  # type: ignore[no-any-return]


def _home(module: nn.Module) -> object:
    """The file of transformers that the module is written in."""
    return sys.modules[type(module).__module__]


def _terms(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, causal: bool, options: dict[str, Any]
) -> Terms:
    scale = options.get("scaling")
    return Terms(
        q=query.detach(),
        k=key.detach(),
        v=value.detach(),
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=mask,
        causal=causal,
        bias=options.get("position_bias"),
        softcap=options.get("softcap"),
        sink=options.get("s_aux"),
    )


def _record(module: nn.Module, terms: Terms, answer: Tensor) -> None:
    recorder = _recorder.get()
    if recorder is not None and recorder.owns(module):
        with torch.no_grad():
            recorder.take(module, terms, answer.detach())
