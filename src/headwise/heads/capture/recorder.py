"""What an open capture collects: statistics of every head, and the weights of chosen ones."""

import inspect
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import BadValue
from headwise.heads.capture.weights import Terms
from headwise.heads.metrics import Rows
from headwise.heads.names import Head, Layer
from headwise.heads.statistics import Statistics
from headwise.nn.huggingface.attention import is_cross
from headwise.verify.budget import judge

BLOCK = 1 << 22
"""How many weights are held at a time while statistics are taken, over batch and heads."""

CHECKED = 64
"""How many rows of each attention are recomputed exactly and held against the model's answer."""

ROUNDING = 100.0
"""How many times the acceptance rule two kernels' rounding may differ; a missing term of the
formula differs by far more."""


class Recorder:
    """The collector that `capture` yields.

    Attributes:
        statistics: sums over every pass of the model.
        weights: for each head asked for (B, Lq, Lk), of the last pass; 0 where not allowed.
        allowed: for the same heads (B, Lq, Lk), True where the query may attend.
    """

    def __init__(
        self, model: nn.Module, heads: frozenset[Head], separators: frozenset[int]
    ) -> None:
        self.statistics = Statistics()
        self.weights: dict[Head, Tensor] = {}
        self.allowed: dict[Head, Tensor] = {}
        self._heads = heads
        self._separators = separators
        self.model = model
        self._names = {id(module): name for name, module in model.named_modules()}
        self._two_stacks = bool(getattr(model.config, "is_encoder_decoder", False))
        self._calls: Counter[str] = Counter()
        self._inputs: dict[str, Any] = {}

    def start(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before each pass: layers are counted from 0 again."""
        bound = inspect.signature(model.forward).bind_partial(*args, **kwargs)
        self._inputs = bound.arguments
        self._calls.clear()

    def owns(self, module: nn.Module) -> bool:
        """Whether the module is part of the model that is captured."""
        return id(module) in self._names

    def finish(self) -> None:
        """After the last pass: something must have been seen."""
        if not self.statistics.layers:
            raise BadValue(
                f"model: {type(self.model).__name__} never called attention through transformers' "
                "interface, so nothing could be measured; run it inside the capture, and use a "
                "model that supports attn_implementation='sdpa'",
                f"model：{type(self.model).__name__} 从未通过 transformers 的接口调用注意力，"
                "因此无法测量；请在捕获期间运行模型，并使用支持 "
                "attn_implementation='sdpa' 的模型",
            )

    def take(self, module: nn.Module, terms: Terms, answer: Tensor) -> None:
        """One attention of the model: its terms and the answer (B, Lq, H, Dv) it gave."""
        layer = self._layer(module)
        _same_text(layer, terms)
        _check(layer, terms, answer)
        batch, heads, length, keys = terms.size
        step = max(1, BLOCK // max(1, batch * heads * keys))
        for start in range(0, length, step):
            rows = slice(start, min(start + step, length))
            block = self._rows(layer, terms, rows)
            self.statistics.add(layer, block)
            self._keep(layer, block, rows, length)

    def _layer(self, module: nn.Module) -> Layer:
        """Calls are counted, not modules: ALBERT runs one module once a layer."""
        name = self._names[id(module)].lower()
        part = ""
        if is_cross(name, module):
            part = "cross"
        elif self._two_stacks:
            part = "encoder" if "encoder" in name.split(".") else "decoder"
        self._calls[part] += 1
        return Layer(part, self._calls[part] - 1)

    def _rows(self, layer: Layer, terms: Terms, rows: slice) -> Rows:
        batch, _, length, keys = terms.size
        weights, allowed = terms.weights(rows)
        device = weights.device
        asked, read = self._side(layer.part == "cross"), self._side(False)
        if layer.part == "decoder":
            asked = read = self._side(True)
        real = _real(asked, batch, length, device)
        return Rows(
            weights=weights,
            allowed=allowed,
            counts=real[:, rows],
            position=None if layer.part == "cross" else torch.arange(length, device=device)[rows],
            first=_real(read, batch, keys, device).int().argmax(-1),
            separators=self._special(read, batch, keys, device),
            tokens=_tokens(read, batch, keys, device),
        )

    def _side(self, decoder: bool) -> tuple[Any, Any]:
        """Attention mask and token ids of the text, or of the decoder's where there are two."""
        prefix = "decoder_" if decoder and self._two_stacks else ""
        return self._inputs.get(f"{prefix}attention_mask"), self._inputs.get(f"{prefix}input_ids")

    def _special(
        self, side: tuple[Any, Any], batch: int, keys: int, device: torch.device
    ) -> Tensor | None:
        ids = _tokens(side, batch, keys, device)
        if ids is None or not self._separators:
            return None
        return torch.isin(ids, torch.tensor(sorted(self._separators), device=device))

    def _keep(self, layer: Layer, block: Rows, rows: slice, length: int) -> None:
        batch, heads, _, keys = block.weights.shape
        for number in range(heads):
            head = Head(layer, number)
            if head not in self._heads:
                continue
            if rows.start == 0:
                self.weights[head] = block.weights.new_zeros(batch, length, keys)
                self.allowed[head] = block.allowed.new_zeros(batch, length, keys)
            self.weights[head][:, rows] = block.weights[:, number]
            self.allowed[head][:, rows] = block.allowed[:, number % block.allowed.shape[1]]


def _real(side: tuple[Any, Any], batch: int, length: int, device: torch.device) -> Tensor:
    """(B, length), True on real tokens; all of them where the model was given no padding mask."""
    mask = side[0]
    if isinstance(mask, Tensor) and mask.shape == (batch, length):
        return mask.to(device).bool()
    return torch.ones(batch, length, dtype=torch.bool, device=device)


def _tokens(side: tuple[Any, Any], batch: int, keys: int, device: torch.device) -> Tensor | None:
    """(B, Lk), the ids of the text the keys are; None where the model was given none."""
    ids = side[1]
    fits = isinstance(ids, Tensor) and ids.shape == (batch, keys)
    return ids.to(device) if fits else None


def _same_text(layer: Layer, terms: Terms) -> None:
    _, _, queries, keys = terms.size
    if layer.part != "cross" and queries != keys:
        raise BadValue(
            f"model: {layer} attends from {queries} tokens to {keys}, a pass with a cache of "
            "earlier tokens; give the whole text in one pass, without past_key_values",
            f"model：{layer} 从 {queries} 个词元关注 {keys} 个键，即使用了先前词元的缓存；"
            "请一次给出全部文本，不要使用 past_key_values",
        )


def _check(layer: Layer, terms: Terms, answer: Tensor) -> None:
    """Hold our formula against the model's own answer on its first rows."""
    rows = slice(0, CHECKED)
    seen = terms.allowed(rows).any(-1)[..., None]  # a blind row's answer is the model's own affair
    given = torch.where(seen, answer[:, rows].transpose(1, 2), 0.0)
    exact = terms.output(rows, torch.float64)
    verdict = judge(given, terms.output(rows).to(given.dtype), exact)
    if not (verdict.accepted or verdict.times <= ROUNDING):
        raise BadValue(
            f"model: {layer} does not compute softmax(q kᵀ · scale + mask) v as known here (its "
            f"answer differs by {verdict.worst:.1e}), so its weights cannot be told; please report "
            "the model",
            f"model：{layer} 的计算与此处已知的 softmax(q kᵀ · scale + mask) v 不符"
            f"（结果相差 {verdict.worst:.1e}），无法得知其权重；请报告该模型",
        )
