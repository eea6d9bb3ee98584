"""The recorder of a capture: statistics of every head, attention weights of selected heads."""

import ctypes
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.heads.capture.block_weights import (
    AttentionTerms,
    BlockLayout,
    LayoutCache,
    WeightBlock,
)
from headwise.heads.capture.capture_options import CaptureOptions
from headwise.heads.capture.token_positions import KeyInfo, TokenTracker
from headwise.heads.metrics import Rows
from headwise.heads.names import Head, Layer, none_such
from headwise.heads.statistics import Statistics
from headwise.nn.huggingface.attention_function import is_cross_attention
from headwise.verify.oracle.tolerance import Verdict, judge

LARGE = 1 << 20  # free memory is returned to the system after blocks of at least this many weights
CHECKED_ROWS = 32  # the number of first and of last rows of an attention that are recomputed

ROUNDING_FACTOR = 100.0
"""The most times the tolerance by which the rounding of two kernels may differ; a missing term of
the formula differs by far more."""


class Recorder:
    """The measurements that `capture` yields.

    Attributes:
        statistics: the statistics of all forward passes.
        weights: the attention weights (B, rows, Lk) of each selected head in the last forward pass;
            0 where not allowed.
        allowed: for the same heads (B, rows, Lk), True where the query may attend to the key.
        model: the captured model.
        taken: the number of recorded attention calls.
    """

    def __init__(self, model: nn.Module, options: CaptureOptions) -> None:
        self.statistics = Statistics(metrics=options.metrics)
        self.weights: dict[Head, Tensor] = {}
        self.allowed: dict[Head, Tensor] = {}
        self.model, self.taken = model, 0
        self._options = options
        self._layouts = LayoutCache(options)
        self._names = {id(module): name for name, module in model.named_modules()}
        self._two_stacks = _two_stacks(model)
        self._tracker = TokenTracker(model, self._two_stacks)
        self._inside = False
        self._calls: Counter[str] = Counter()
        self._numbers: dict[int, Layer] = {}
        self._counts: dict[Layer, int] = {}

    def start(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: read the inputs and restart the layer count."""
        self._tracker.start(args, kwargs)
        self._calls.clear()
        self._inside = True

    def stop(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Forward hook: read the cache and end the forward pass."""
        self._tracker.finish(output)
        self._layouts.forget()
        self._inside = False

    def owns(self, module: nn.Module) -> bool:
        """Return whether a module is part of the captured model."""
        return id(module) in self._names

    def finish(self) -> None:
        """Raise `BadValue` if no attention or not every selected head was recorded."""
        if not self.statistics.layers:
            raise BadValue(
                "model: {name} called no attention that can be captured; run the model inside the "
                "`with` block, and use a model with nn.MultiheadAttention, "
                "headwise.MultiheadAttention or transformers' attention interface "
                "(attn_implementation='sdpa')",
                name=type(self.model).__name__,
            )
        for head in sorted(self._options.heads or ()):
            if head.layer not in self._counts:
                raise none_such(head, self._counts)

    def take(
        self,
        module: nn.Module,
        terms: AttentionTerms,
        answer: Tensor | None,
        key_info: KeyInfo | None = None,
    ) -> None:
        """Record one attention call of the model.

        The ``answer`` is the output of the call, (B, Lq, H, Dv) or as from ``terms.finish``; None
        skips its checks. Raises `BadValue` if the output differs from that of ``terms`` or is NaN
        for a token, or if the layer lacks a selected head.
        """
        key_info = KeyInfo() if key_info is None else key_info
        layer, num_heads = self._layer(module, key_info.cross), terms.size[1]
        self._counts[layer] = num_heads
        for head in sorted(self._options.heads or ()):
            if head.layer == layer and not 0 <= head.number < num_heads:
                raise none_such(head, {layer: num_heads})
        self.taken += 1
        if not terms.measurable:
            return
        if answer is not None:
            _check(layer, terms, answer)
        place = self._tracker.place(layer.part, terms.q, terms.k[:, :, : terms.tokens], key_info)
        layout = self._layouts.of(terms, place)
        if answer is not None:
            _check_numbers(layer, answer, layout.queries)
        self._measure(layer, terms, layout)
        if not self._inside:
            self._layouts.forget()
        if layout.buffer_size >= LARGE:
            release_free_memory()

    def _measure(self, layer: Layer, terms: AttentionTerms, layout: BlockLayout) -> None:
        """Measure block by block; keep only the properties of a block that the metrics read."""
        reads, device = self.statistics.reads, terms.q.device
        buffers = torch.empty(2, layout.buffer_size, dtype=terms.wide, device=device)
        for group in layout.groups:
            seen = []
            for part, context in zip(group.parts, group.contexts, strict=True):
                block = terms.block(part, buffers=buffers)
                tokens = terms.within(part.keys)
                weights, scores = (tensor[..., tokens] for tensor in (block.weights, block.scores))
                rows = Rows(weights=weights, context=context, scores=scores)
                seen.append(rows.without_inputs(reads))
                self._keep(layer, block, terms)
            joined = Rows.concatenated(seen, group.context, reads)
            self.statistics.add(layer, joined, group.baseline)

    def _layer(self, module: nn.Module, cross: bool | None) -> Layer:
        """Return the layer, by calls in a forward pass (ALBERT reuses modules), else by modules."""
        name = self._names[id(module)].lower()
        part = ""
        if is_cross_attention(name, module) if cross is None else cross:
            part = "cross"
        elif self._two_stacks:
            part = "encoder" if "encoder" in name.split(".") else "decoder"
        if self._inside:
            self._calls[part] += 1
            return Layer(part, self._calls[part] - 1)
        if id(module) not in self._numbers:
            number = sum(layer.part == part for layer in self._numbers.values())
            self._numbers[id(module)] = Layer(part, number)
        return self._numbers[id(module)]

    def _keep(self, layer: Layer, block: WeightBlock, terms: AttentionTerms) -> None:
        heads = self._options.heads
        numbers = [n for n in range(terms.size[1]) if heads is None or Head(layer, n) in heads]
        if not numbers:
            return
        part, (batch, _, length, keys) = block.part, terms.size
        chosen = self._options.rows
        rows = range(length) if chosen is None else [row for row in chosen if row < length]
        here = [n for n, row in enumerate(rows) if part.rows.start <= row < part.rows.stop]
        within = [rows[n] - part.rows.start for n in here]
        allowed = terms.allowed(part.rows, part.keys)
        for number in numbers:
            head = Head(layer, number)
            if part.rows.start == 0:
                self.weights[head] = block.weights.new_zeros(batch, len(rows), keys)
                self.allowed[head] = allowed.new_zeros(batch, len(rows), keys)
            seen = allowed[:, number % allowed.shape[1]]
            self.weights[head][:, here, part.keys] = block.weights[:, number][:, within]
            self.allowed[head][:, here, part.keys] = seen[:, within]


def _two_stacks(model: nn.Module) -> bool:
    """Return whether a model has encoder and decoder, by its configuration or module names."""
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "is_encoder_decoder"):
        return bool(config.is_encoder_decoder)
    words = {word for name, _ in model.named_modules() for word in name.lower().split(".")}
    return {"encoder", "decoder"} <= words


def _check(layer: Layer, terms: AttentionTerms, answer: Tensor) -> None:
    """Raise `BadValue` if the first or last rows of the output differ from those of the terms."""
    length = terms.size[2]
    for rows in {(0, min(CHECKED_ROWS, length)), (max(length - CHECKED_ROWS, 0), length)}:
        verdict = _judged(terms, answer, slice(*rows))
        if not (verdict.accepted or verdict.times <= ROUNDING_FACTOR):
            raise BadValue(
                "model: the output of {layer} differs from softmax(q kᵀ · scale + mask) v by "
                "{worst:.1e}, so its attention weights are unknown; please report the model",
                layer=layer,
                worst=verdict.worst,
            )


def _check_numbers(layer: Layer, answer: Tensor, queries: Tensor) -> None:
    """Raise `BadValue` if the output is NaN for one of the ``queries`` (B, H or 1, Lq).

    `_check` does not detect this, since recomputing the output also gives NaN.
    """
    per_head = answer.dim() == 4
    queries = queries.transpose(1, 2) if per_head else queries.all(1)
    wrong = answer.isnan().any(-1) & queries  # (B, Lq, H), or (B, Lq) of concatenated heads
    if bool(wrong.any()):
        sample, query, *_ = wrong.nonzero()[0].tolist()
        raise BadValue(
            "model: {layer} outputs NaN for tokens that are not padding, first at sample {sample}, "
            "query {query}; NaN often spreads from padding: pad on the right, use "
            "attn_implementation='sdpa', or check weights and inputs for NaN and inf",
            layer=layer,
            sample=sample,
            query=query,
        )


def _judged(terms: AttentionTerms, answer: Tensor, rows: slice) -> Verdict:
    """Compare some rows of the output, except fully masked rows, with those of the terms."""
    allowed = terms.allowed(rows, terms.reach(rows)).any(-1)  # (B, H or 1, R)
    outputs = [terms.output(rows, torch.float64), terms.output(rows, torch.float32)]
    if terms.finish is None:
        seen = allowed.transpose(1, 2)[..., None]  # (B, R, H or 1, 1)
        exact, plain = (output.transpose(1, 2) for output in outputs)
    else:
        seen = allowed.all(1)[..., None]  # (B, R, 1)
        exact, plain = (terms.finish(output) for output in outputs)
    exact, plain, actual = (tensor.where(seen, 0.0) for tensor in (exact, plain, answer[:, rows]))
    in_float32 = actual.dtype == torch.float64  # since transformers' softmax is in float32
    dtype = torch.float32 if in_float32 else actual.dtype
    return judge(actual.to(dtype), plain.to(dtype), exact)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return the function malloc_trim of glibc; None with another C library."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # Windows has no library without a name
        return None
    return trim


def release_free_memory() -> None:
    """Return free memory on the heap to the system, which glibc does not do on its own."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)
