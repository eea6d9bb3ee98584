"""Attention of `headwise.MultiheadAttention`, anywhere in a module tree."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.call import Call
from headwise.errors import BadValue
from headwise.heads.capture.bare import terms_of
from headwise.heads.capture.recorder import Recorder
from headwise.heads.capture.replaced import replaced
from headwise.heads.capture.texts import Told
from headwise.heads.capture.torch_modules import is_cross
from headwise.masks.appended import Appended
from headwise.nn import MultiheadAttention


@contextmanager
def through_headwise(recorder: Recorder) -> Iterator[None]:
    """While this is open, every `headwise.MultiheadAttention` of the model is recorded.

    Raises:
        BadValue: if one has projections of its own for global tokens.
    """
    with ExitStack() as stack:
        for name, module in recorder.model.named_modules():
            if not isinstance(module, MultiheadAttention):
                continue
            if module.global_proj is not None:
                raise BadValue(
                    f"model: {name or 'it'} projects global tokens apart (global_projections), "
                    "so that its rows come from two attentions; capture one without",
                    f"model：{name or '该模型'} 对全局词元使用单独的投影（global_projections），"
                    "其各行来自两个注意力；请捕获没有它的模型",
                )
            new = _recording(recorder, module, is_cross(name, recorder.model))
            stack.enter_context(replaced(module, "attend_heads", new))
        yield


def _recording(recorder: Recorder, module: MultiheadAttention, named_cross: bool) -> Any:
    inner = module.attend_heads

    def _attend_heads(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        with torch.no_grad():
            given = {key: kwargs.get(key) for key in ("mask", "position", "offset", "sinks")}
            call = Call.of(*(each.detach() for each in args), **given)  # type: ignore[arg-type]
            cross = named_cross or call.frame.queries > call.frame.keys
            offset = None if cross else call.frame.offset
            told = Told(_real(call), cross, offset)
            answer = result.output.detach().transpose(1, 2)
            recorder.take(module, terms_of(call), answer, told)
        return result

    return _attend_heads


def _real(call: Call) -> Tensor | None:
    """(B, n), False on padding among the keys of the text: appended keys are none of it."""
    mask, frame = call.mask, call.frame
    if isinstance(mask, Appended) and mask.own is not None:
        frame = replace(frame, keys=mask.own)
        mask = mask.inner
    return mask.real_keys(frame)
