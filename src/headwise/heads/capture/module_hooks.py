"""Hooks for `nn.MultiheadAttention` and `headwise.MultiheadAttention` in a module tree."""

import functools
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

CROSS = ("cross", "encoder_attn", "encoder_attention", "encdec")
"""Parts of the names that people give to attention from a decoder to its encoder."""

FUSED = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
"""Modules that may run their attention as a part of one fused operation."""


@contextmanager
def torch_hooks(recorder: Recorder) -> Iterator[None]:
    """While this is open, every `nn.MultiheadAttention` of the model is recorded."""
    named = list(recorder.model.named_modules())
    with ExitStack() as stack:
        for name, module in named:
            if type(module).forward is nn.MultiheadAttention.forward:
                new = _recording(recorder, module, is_cross(name, recorder.model))
                stack.enter_context(patched_method(module, "forward", new))
        for _, module in _outermost(named):
            stack.enter_context(
                patched_method(module, "forward", _with_unfused_pass(recorder, module))
            )
        yield


def _outermost(named: list[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    """The modules of `FUSED` that stand in no other."""
    outer: list[str] = []
    for name, module in named:
        inside = any(name.startswith(f"{outer_name}.") or not outer_name for outer_name in outer)
        if isinstance(module, FUSED) and not inside:
            outer.append(name)
            yield name, module


def is_cross(name: str, model: nn.Module) -> bool:
    """Whether an attention of that name in a model looks from one text at another.

    By its name, or because it is the ``multihead_attn`` beside a ``self_attn``, as in torch's and
    DETR's decoder layers.
    """
    parent, _, own = name.rpartition(".")
    beside = own == "multihead_attn" and hasattr(model.get_submodule(parent), "self_attn")
    return beside or any(word in name.lower() for word in CROSS)


def _with_unfused_pass(recorder: Recorder, module: nn.Module) -> Any:
    """The module's answer; where it ran fused, it runs once more, unfused, to be recorded.

    The answer is the fused one, bit for bit.
    """
    inner = module.forward

    def _forward(*args: Any, **kwargs: Any) -> Any:
        before = recorder.taken
        answer = inner(*args, **kwargs)
        if recorder.taken == before:
            fast = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                inner(*args, **kwargs)
            finally:
                torch.backends.mha.set_fastpath_enabled(fast)
        return answer

    return _forward


def _recording(recorder: Recorder, module: nn.Module, named_cross: bool) -> Any:
    inner = module.forward

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        answer = inner(
            query,
            key,
            value,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        if query.is_nested:
            raise BadValue(
                "model: nn.MultiheadAttention was given a nested tensor, whose weights "
                "cannot be determined; give a padded tensor and key_padding_mask"
            )
        with torch.no_grad():
            call = _Call(module, query.detach(), key.detach(), value.detach())
            output = call.batch_first(answer[0].detach())
            apart = query is not key and (key is value or call.q.shape[2] > call.own)
            cross = named_cross or apart
            real = None if key_padding_mask is None else call.real(key_padding_mask)
            key_info = KeyInfo(real, cross, None if cross else call.own - call.q.shape[2])
            recorder.take(module, call.terms(key_padding_mask, attn_mask), output, key_info)
        return answer

    return forward


class _Call:
    """One call of an `nn.MultiheadAttention`, as q, k, v and a mask."""

    def __init__(self, module: Any, query: Tensor, key: Tensor, value: Tensor) -> None:
        self.module, self.batched = module, query.dim() == 3
        inputs = [self.batch_first(tensor) for tensor in (query, key, value)]
        weights, biases = self._projections()
        q, k, v = (F.linear(*terms) for terms in zip(inputs, weights, biases, strict=True))
        self.own = k.shape[1]
        if module.bias_k is not None:
            k, v = self._with(k, module.bias_k), self._with(v, module.bias_v)
        if module.add_zero_attn:
            k, v = (F.pad(tensor, (0, 0, 0, 1)) for tensor in (k, v))
        self.q, self.k, self.v = (split_heads(tensor, module.num_heads) for tensor in (q, k, v))

    def batch_first(self, x: Tensor) -> Tensor:
        """(B, L, E), whatever the module's layout."""
        if not self.batched:
            return x[None]
        return x if self.module.batch_first else x.transpose(0, 1)

    def real(self, padded: Tensor) -> Tensor:
        """(B, S), False on padding, from booleans or from floats that are added."""
        closed = padded if padded.dtype == torch.bool else padded == -torch.inf
        return ~(closed if self.batched else closed[None])

    def terms(self, padded: Tensor | None, mask: Tensor | None) -> AttentionTerms:
        """What the call is computed from."""
        (batch, heads, queries, _), keys = self.q.shape, self.k.shape[2]
        added = [_added(mask, self.q.dtype)] if mask is not None else []
        if mask is not None and mask.dim() == 3:
            added = [added[0].view(batch, heads, queries, self.own)]
        if padded is not None:
            extra = _added(padded if self.batched else padded[None], self.q.dtype)
            added.append(extra[:, None, None])
        whole = None
        if added:
            whole = added[0] if len(added) == 1 else added[0] + added[1]
            whole = whole[(None,) * (4 - whole.dim())].expand(-1, -1, queries, -1)
            whole = F.pad(whole, (0, keys - self.own))  # everybody sees appended keys
        return AttentionTerms(
            q=self.q,
            k=self.k,
            v=self.v,
            scale=self.q.shape[-1] ** -0.5,
            pattern=TensorPattern(keys=keys, device=self.q.device, mask=whole),
            appended=keys - self.own,
            finish=self._finish,
        )

    def _finish(self, heads: Tensor) -> Tensor:
        """The heads side by side, projected: (B, R, E)."""
        out = self.module.out_proj
        bias = None if out.bias is None else out.bias.to(heads.dtype)
        return F.linear(heads.transpose(1, 2).flatten(2), out.weight.to(heads.dtype), bias)

    def _projections(self) -> tuple[list[Tensor], list[Tensor | None]]:
        module = self.module
        if module._qkv_same_embed_dim:
            weights = list(module.in_proj_weight.chunk(3))
        else:
            weights = [getattr(module, f"{name}_proj_weight") for name in "qkv"]
        bias = module.in_proj_bias
        return weights, [None] * 3 if bias is None else list(bias.chunk(3))

    def _with(self, x: Tensor, vector: Tensor) -> Tensor:
        return torch.cat((x, vector.expand(x.shape[0], 1, -1)), 1)


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of torch's, True = blocked or floats, as floats that are added."""
    if mask.dtype != torch.bool:
        return mask.detach()
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -torch.inf)


@contextmanager
def patched_method(owner: object, name: str, new: Callable[..., Any]) -> Iterator[None]:
    """While this is open, ``owner.name`` is ``new``, which looks like what it replaces."""
    old = getattr(owner, name)
    own = vars(owner).get(name)
    vars(owner)[name] = functools.wraps(old)(new)
    try:
        yield
    finally:
        if own is None:
            del vars(owner)[name]
        else:
            vars(owner)[name] = own


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
