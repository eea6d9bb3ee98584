"""Hooks for `nn.MultiheadAttention` and `headwise.MultiheadAttention` in a module tree."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwise.call import Call
from headwise.errors import BadValue
from headwise.heads.capture.block_weights import AttentionTerms
from headwise.heads.capture.from_tensors import real_keys, terms_of_call
from headwise.heads.capture.pattern import TensorPattern
from headwise.heads.capture.recorder import Recorder
from headwise.heads.capture.token_positions import KeyInfo
from headwise.nn import MultiheadAttention
from headwise.nn.cache import KVCache
from headwise.nn.cache_state import CacheState
from headwise.nn.validation import split_heads

CROSS = ("cross", "encoder_attn", "encoder_attention", "encdec")  # in names of cross-attention
FUSED = (nn.TransformerEncoder, nn.TransformerEncoderLayer)  # they may run attention fused


@contextmanager
def torch_hooks(recorder: Recorder) -> Iterator[None]:
    """While this is open, every `nn.MultiheadAttention` of the model is recorded."""
    named = list(recorder.model.named_modules())
    with ExitStack() as stack:
        for name, module in named:
            if type(module).forward is nn.MultiheadAttention.forward:
                new = _recording(recorder, module, is_cross(name, recorder.model))
                stack.enter_context(patched_method(module, "forward", new))
        for module in _outermost(named):
            new = _with_unfused_pass(recorder, module)
            stack.enter_context(patched_method(module, "forward", new))
        yield


def _outermost(named: list[tuple[str, nn.Module]]) -> Iterator[nn.Module]:
    outer: list[str] = []
    for name, module in named:
        inside = any(name.startswith(f"{outer_name}.") or not outer_name for outer_name in outer)
        if isinstance(module, FUSED) and not inside:
            outer.append(name)
            yield module


def is_cross(name: str, model: nn.Module) -> bool:
    """Whether a module is cross-attention: by its name, or ``multihead_attn`` by ``self_attn``."""
    parent, _, own = name.rpartition(".")
    beside = own == "multihead_attn" and hasattr(model.get_submodule(parent), "self_attn")
    return beside or any(word in name.lower() for word in CROSS)


def _with_unfused_pass(recorder: Recorder, module: nn.Module) -> Any:
    """The module's forward; where it ran fused, it runs again, unfused, to be recorded."""
    inner = module.forward

    def _forward(*args: Any, **kwargs: Any) -> Any:
        before = recorder.taken
        output = inner(*args, **kwargs)
        if recorder.taken == before:
            fast = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                inner(*args, **kwargs)
            finally:
                torch.backends.mha.set_fastpath_enabled(fast)
        return output

    return _forward


def _recording(recorder: Recorder, module: nn.Module, named_cross: bool) -> Any:
    inner = module.forward
    signature = inspect.signature(inner)

    def _forward(*args: Any, **kwargs: Any) -> Any:
        answer = inner(*args, **kwargs)
        inputs = signature.bind(*args, **kwargs).arguments
        query, key, value = (inputs[name] for name in ("query", "key", "value"))
        key_padding_mask, attn_mask = inputs.get("key_padding_mask"), inputs.get("attn_mask")
        if query.is_nested:
            raise BadValue(
                "model: nn.MultiheadAttention was given a nested tensor, whose weights "
                "cannot be determined; give a padded tensor and key_padding_mask"
            )
        with torch.no_grad():
            call = _Call(module, query.detach(), key.detach(), value.detach())
            output = call.batch_first(answer[0].detach())
            two_texts = query is not key and (key is value or call.q.shape[2] > call.own)
            cross = named_cross or two_texts
            real = None if key_padding_mask is None else call.real(key_padding_mask)
            key_info = KeyInfo(real, cross, None if cross else call.own - call.q.shape[2])
            recorder.take(module, call.terms(key_padding_mask, attn_mask), output, key_info)
        return answer

    return _forward


class _Call:
    """One call of an `nn.MultiheadAttention`, as q, k, v and a mask."""

    def __init__(self, module: Any, query: Tensor, key: Tensor, value: Tensor) -> None:
        self.module, self.batched = module, query.dim() == 3
        inputs = [self.batch_first(tensor) for tensor in (query, key, value)]
        if module._qkv_same_embed_dim:
            weights = list(module.in_proj_weight.chunk(3))
        else:
            weights = [getattr(module, f"{name}_proj_weight") for name in "qkv"]
        biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
        q, k, v = (F.linear(*terms) for terms in zip(inputs, weights, biases, strict=True))
        self.own = k.shape[1]
        if module.bias_k is not None:
            k, v = (
                torch.cat((tensor, vector.expand(tensor.shape[0], 1, -1)), 1)
                for tensor, vector in ((k, module.bias_k), (v, module.bias_v))
            )
        if module.add_zero_attn:
            k, v = (F.pad(tensor, (0, 0, 0, 1)) for tensor in (k, v))
        self.q, self.k, self.v = (split_heads(tensor, module.head_dim) for tensor in (q, k, v))

    def batch_first(self, x: Tensor) -> Tensor:
        """(B, L, E) from the module's layout."""
        if not self.batched:
            return x[None]
        return x if self.module.batch_first else x.transpose(0, 1)

    def real(self, padded: Tensor) -> Tensor:
        """(B, S), False on padding, from a mask of booleans or of floats that are added."""
        closed = padded if padded.dtype == torch.bool else padded == -torch.inf
        return ~(closed if self.batched else closed[None])

    def terms(self, padded: Tensor | None, mask: Tensor | None) -> AttentionTerms:
        """The terms of this call, from PyTorch's ``key_padding_mask`` and ``attn_mask``."""
        (batch, heads, queries, _), keys = self.q.shape, self.k.shape[2]
        added = []
        if mask is not None:
            bias = _added(mask, self.q.dtype)
            added.append(bias.view(batch, heads, queries, self.own) if bias.dim() == 3 else bias)
        if padded is not None:
            bias = _added(padded if self.batched else padded[None], self.q.dtype)
            added.append(bias[:, None, None])
        whole = None
        if added:
            whole = added[0] if len(added) == 1 else added[0] + added[1]
            whole = whole[(None,) * (4 - whole.dim())].expand(-1, -1, queries, -1)
            whole = F.pad(whole, (0, keys - self.own))  # every query sees appended keys
        scale, pattern = self.q.shape[-1] ** -0.5, TensorPattern(keys, self.q.device, whole)
        return AttentionTerms(
            self.q, self.k, self.v, scale, pattern, appended=keys - self.own, finish=self._finish
        )

    def _finish(self, heads: Tensor) -> Tensor:
        out = self.module.out_proj
        bias = None if out.bias is None else out.bias.to(heads.dtype)
        return F.linear(heads.transpose(1, 2).flatten(2), out.weight.to(heads.dtype), bias)


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of PyTorch, True = blocked or floats, as floats that are added."""
    if mask.dtype != torch.bool:
        return mask.detach()
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -torch.inf)


@contextmanager
def patched_method(owner: object, name: str, new: Callable[..., Any]) -> Iterator[None]:
    """While this is open, ``owner.name`` is ``new``, with the signature of the old method."""
    old, before = getattr(owner, name), vars(owner).get(name)
    vars(owner)[name] = functools.wraps(old)(new)
    try:
        yield
    finally:
        del vars(owner)[name]
        if before is not None:
            vars(owner)[name] = before


@contextmanager
def headwise_hooks(recorder: Recorder) -> Iterator[None]:
    """While this is open, every `headwise.MultiheadAttention` of the model is recorded.

    `BadValue` is raised if one has separate projections for global tokens.
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
            evicted, cross = _EvictedTokens(), is_cross(name, recorder.model)
            stack.enter_context(patched_method(module, "_head_outputs", _watching(evicted, module)))
            new = _recording_headwise(recorder, module, cross, evicted)
            stack.enter_context(patched_method(module, "attend_heads", new))
        yield


class _EvictedTokens:
    """The tokens before the first key, which a sliding cache has evicted in the running call."""

    def __init__(self) -> None:
        self.count = 0
        self.real = torch.ones(0, 0, dtype=torch.bool)
        self._seen: WeakKeyDictionary[KVCache, Tensor] = WeakKeyDictionary()

    def start(self, past: CacheState, new: Tensor) -> None:
        """Before a call with a cache and new tokens (B, n, ·)."""
        batch, length = new.shape[:2]
        real = new.new_ones(batch, length, dtype=torch.bool) if past.real is None else past.real
        self.count, before = 0, new.new_ones(batch, past.seen, dtype=torch.bool)
        if past.cache is None:
            return
        seen = self._seen.get(past.cache)
        if seen is not None and seen.shape == before.shape:  # else the cache was used outside
            before = seen
        self._seen[past.cache] = torch.cat((before, real.expand(batch, -1)), 1)
        self.count = 0 if past.cache.kept else past.seen - past.length
        self.real = before[:, : self.count]

    def before(self, real: Tensor | None, batch: int, keys: int) -> Tensor | None:
        """(B, count + n), False on padding, from that of the n keys, where None means all real."""
        if not self.count:
            return real
        of_keys = self.real.new_ones(batch, keys) if real is None else real.expand(batch, -1)
        return torch.cat((self.real, of_keys), 1)


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
            names = ("mask", "position", "offset", "sinks", "softcap")
            options = {name: kwargs.get(name) for name in names}
            call = Call.of(*(tensor.detach() for tensor in args), **options)  # type: ignore[arg-type]
            terms = replace(terms_of_call(call), appended=appended)
            real = real_keys(call)
            if named_cross or call.shape.queries > terms.tokens:
                key_info = KeyInfo(real, True)
            else:
                real = evicted.before(real, call.shape.batch, terms.tokens)
                key_info = KeyInfo(real, False, call.shape.offset, evicted.count)
            recorder.take(module, terms, result.output.detach().transpose(1, 2), key_info)
        return result

    return _attend_heads
