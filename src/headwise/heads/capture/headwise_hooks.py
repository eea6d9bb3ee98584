"""Attention of `headwise.MultiheadAttention`, anywhere in a module tree."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from headwise.call import Call
from headwise.errors import BadValue
from headwise.heads.capture.from_tensors import real_keys, terms_of_call
from headwise.heads.capture.recorder import Recorder
from headwise.heads.capture.token_positions import KeyInfo
from headwise.heads.capture.torch_hooks import is_cross, patched_method
from headwise.nn import MultiheadAttention
from headwise.nn.cache import KVCache
from headwise.nn.cache_state import CacheState


@contextmanager
def headwise_hooks(recorder: Recorder) -> Iterator[None]:
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
                    "model: {name} projects global tokens apart (global_projections), so that its "
                    "rows come from two attentions; capture a model without them",
                    name=name or "MultiheadAttention",
                )
            evicted = _EvictedTokens()
            stack.enter_context(patched_method(module, "_head_outputs", _watching(evicted, module)))
            new = _recording_headwise(recorder, module, is_cross(name, recorder.model), evicted)
            stack.enter_context(patched_method(module, "attend_heads", new))
        yield


class _EvictedTokens:
    """The tokens that came before the first key, which a sliding cache keeps no more.

    Attributes:
        count: how many, in the call that is running; 0 where the cache keeps the first for ever.
        real: (B, count), False on padding.
    """

    def __init__(self) -> None:
        self.count = 0
        self.real = torch.ones(0, 0, dtype=torch.bool)
        self._came: WeakKeyDictionary[KVCache, Tensor] = WeakKeyDictionary()

    def start(self, past: CacheState, new: Tensor) -> None:
        """Before a call.

        Args:
            past: the cache as it stands.
            new: (B, n, ·), what comes.
        """
        batch, many = new.shape[:2]
        some = new.new_ones(batch, many, dtype=torch.bool) if past.real is None else past.real
        self.count, before = 0, new.new_ones(batch, past.seen, dtype=torch.bool)
        if past.cache is None:
            return
        known = self._came.get(past.cache)
        if known is not None and known.shape == before.shape:  # else others have used it since
            before = known
        self._came[past.cache] = torch.cat((before, some.expand(batch, -1)), 1)
        self.count = 0 if past.cache.kept else past.seen - past.length
        self.real = before[:, : self.count]

    def before(self, real: Tensor | None, batch: int, keys: int) -> Tensor | None:
        """(B, count + n), False on padding, those that are evicted included.

        Args:
            real: (B or 1, n), the same of the keys; None where all are real.
            batch: B.
            keys: n, where all are real.
        """
        if not self.count:
            return real
        held = self.real.new_ones(batch, keys) if real is None else real.expand(batch, -1)
        return torch.cat((self.real, held), 1)


def _watching(evicted: _EvictedTokens, module: MultiheadAttention) -> Any:
    inner = module._head_outputs

    def _head_outputs(owner: Any, inputs: Any, mask: Any, need: Any, past: CacheState) -> Any:
        evicted.start(past, inputs[1])
        return inner(owner, inputs, mask, need, past)

    return _head_outputs


def _recording_headwise(
    recorder: Recorder, module: MultiheadAttention, named_cross: bool, evicted: _EvictedTokens
) -> Any:
    inner = module.attend_heads
    appended = (module.bias_k is not None) + module.add_zero_attn

    def _attend_heads(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        with torch.no_grad():
            given = {key: kwargs.get(key) for key in ("mask", "position", "offset", "sinks")}
            call = Call.of(*(tensor.detach() for tensor in args), **given)  # type: ignore[arg-type]
            terms = replace(terms_of_call(call), appended=appended)
            cross = named_cross or call.shape.queries > terms.tokens
            offset = None if cross else call.shape.offset
            key_info = KeyInfo(real_keys(call), cross, offset)
            if not cross:
                real = evicted.before(key_info.real, call.shape.batch, terms.tokens)
                key_info = KeyInfo(real, cross, offset, evicted.count)
            answer = result.output.detach().transpose(1, 2)
            recorder.take(module, terms, answer, key_info)
        return result

    return _attend_heads
