"""What an open capture collects: statistics of every head, and the weights of chosen ones."""

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

LARGE = 1 << 20
"""How many weights a block must have for its memory to be handed back to the system at the end."""

CHECKED_ROWS = 32
"""How many of the first and of the last rows of each attention are recomputed exactly and held
against the model's answer."""

ROUNDING_FACTOR = 100.0
"""How many times the acceptance rule two kernels' rounding may differ; a missing term of the
formula differs by far more."""


class Recorder:
    """The collector that `capture` yields.

    Attributes:
        statistics: sums over every pass of the model.
        weights: for each head asked for (B, Lq, Lk), of the last pass; 0 where not allowed. Where
            only some rows are asked for, Lq counts those.
        allowed: for the same heads (B, Lq, Lk), True where the query may attend.
        model: what is captured.
        taken: how many attentions were recorded.
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
        """Before each pass: layers are counted from 0 again."""
        del model
        self._tracker.start(args, kwargs)
        self._calls.clear()
        self._inside = True

    def stop(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """After each pass."""
        del model, args
        self._tracker.finish(output)
        self._layouts.forget()
        self._inside = False

    def owns(self, module: nn.Module) -> bool:
        """Whether the module is part of the model that is captured."""
        return id(module) in self._names

    def finish(self) -> None:
        """After the last pass: something must have been seen, and every head that is asked for.

        Raises:
            BadValue: if one was not.
        """
        if not self.statistics.layers:
            name = type(self.model).__name__
            raise BadValue(
                "model: {name} never called an attention that can be captured, so "
                "nothing could be measured; run it inside the capture, and use a model "
                "whose attention goes through transformers' interface "
                "(attn_implementation='sdpa'), nn.MultiheadAttention or "
                "headwise.MultiheadAttention",
                name=name,
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
        """One attention of the model.

        Args:
            module: whose it is.
            terms: what it was computed from.
            answer: what it gave, (B, Lq, H, Dv) or what ``terms.finish`` makes of that; None where
                there is nothing to hold the terms against.
            key_info: what the attention itself says of its keys.

        Raises:
            BadValue: if the answer is not what the terms give, or is NaN where a token asked, or
                a head is asked for that the layer has not.
        """
        key_info = KeyInfo() if key_info is None else key_info
        layer = self._layer(module, key_info.cross)
        self._count(layer, terms.size[1])
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

    def _count(self, layer: Layer, heads: int) -> None:
        """Every head that is asked for of a layer must be there."""
        self._counts[layer] = heads
        for head in sorted(self._options.heads or ()):
            if head.layer == layer and not 0 <= head.number < heads:
                raise none_such(head, {layer: heads})

    def _measure(self, layer: Layer, terms: AttentionTerms, layout: BlockLayout) -> None:
        """A block of queries at a time; of each only what metrics look at is kept."""
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
        """Within a pass calls are counted, not modules: ALBERT runs one module once a layer.

        Between passes, as where a generator calls the encoder itself, modules are.
        """
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
        """The weights of the heads and rows that were asked for."""
        wanted = self._options.heads
        numbers = [n for n in range(terms.size[1]) if wanted is None or Head(layer, n) in wanted]
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
    """Whether there are an encoder and a decoder, by the configuration or the modules' names."""
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "is_encoder_decoder"):
        return bool(config.is_encoder_decoder)
    words = {word for name, _ in model.named_modules() for word in name.lower().split(".")}
    return {"encoder", "decoder"} <= words


def _check(layer: Layer, terms: AttentionTerms, answer: Tensor) -> None:
    """Hold our formula against the model's own answer, on its first and its last rows.

    Raises:
        BadValue: if they differ by more than rounding.
    """
    length = terms.size[2]
    for rows in {(0, min(CHECKED_ROWS, length)), (max(length - CHECKED_ROWS, 0), length)}:
        verdict = _judged(terms, answer, slice(*rows))
        if not (verdict.accepted or verdict.times <= ROUNDING_FACTOR):
            raise BadValue(
                "model: {layer} does not compute softmax(q kᵀ · scale + mask) v as known "
                "here (its answer differs by {worst:.1e}), so its weights cannot be "
                "determined; please report the model",
                layer=layer,
                worst=verdict.worst,
            )


def _check_numbers(layer: Layer, answer: Tensor, queries: Tensor) -> None:
    """Where a token asked and saw a key, the model must have answered with numbers.

    Args:
        layer: which.
        answer: as for `Recorder.take`.
        queries: (B, H or 1, Lq), the queries that count and see a key.

    Raises:
        BadValue: if an answer is NaN: the formula gives NaN as well then, and agrees in vain.
    """
    apart = answer.dim() == 4
    seen = queries.transpose(1, 2) if apart else queries.all(1)
    found = answer.isnan().any(-1) & seen  # (B, Lq, H), or (B, Lq) where heads are put together
    if bool(found.any()):
        found = found.any(2) if apart else found
        sample, query = found.nonzero()[0].tolist()
        raise BadValue(
            "model: {layer} answers NaN for real tokens (sample {sample}, query {query} "
            "is the first), so its weights mean nothing; often padding is NaN and "
            "spreads: pad on the right, use attn_implementation='sdpa', or look for NaN "
            "and inf in weights and inputs",
            layer=layer,
            sample=sample,
            query=query,
        )


def _judged(terms: AttentionTerms, answer: Tensor, rows: slice) -> Verdict:
    """Our formula on some rows, in float64 and in the model's precision, beside its answer."""
    allowed = terms.allowed(rows, terms.reach(rows))
    outputs = [terms.output(rows, torch.float64), terms.output(rows, torch.float32)]
    if terms.finish is None:
        seen = allowed.any(-1).transpose(1, 2)[..., None]  # (B, R, H or 1, 1)
        exact, plain = (output.transpose(1, 2) for output in outputs)
    else:
        seen = allowed.any(-1).all(1)[..., None]  # (B, R, 1)
        exact, plain = (terms.finish(output) for output in outputs)
    # the model's output for a fully masked row is not checked
    exact, plain, given = (tensor.where(seen, 0.0) for tensor in (exact, plain, answer[:, rows]))
    own = torch.float32 if given.dtype == torch.float64 else given.dtype  # transformers' softmax
    return judge(given.to(own), plain.to(own), exact)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None where the C library is another."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # Windows has no library without a name
        return None
    return found


def release_free_memory() -> None:
    """Hand back what is free between things that are not: glibc alone gives back only the end.

    A capture leaves small things behind on the heap, and the holes between them would stay with the
    process, too small for the tensors of the model.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)
