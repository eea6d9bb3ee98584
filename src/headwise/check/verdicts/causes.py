"""The mistakes that explain a whole array: other ways to compute an attention, by name."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.check.settings.attention_steps import StepRules, Tables
from headwise.lang import Text

Changed = tuple[Tables, StepRules]


@dataclass(frozen=True, eq=False)
class Cause:
    """One mistake: its name, its inputs and its rules.

    ``kind`` is "unscaled", "unmasked" or "masked" where the article may leave that open.
    """

    name: Text
    given: Tables
    rules: StepRules
    kind: str = ""


def causes(given: Tables, heads: int, rules: StepRules, scale: float) -> Iterator[Cause]:
    """Every mistake that can be made on some inputs, the likeliest first.

    ``scale`` is the factor on the scores that is in force.
    """
    yield from _of_scale(given, rules, scale)
    yield from _of_mask(given, rules)
    yield from _of_softmax(given, rules)
    yield Cause(Text("K Qᵀ instead of Q Kᵀ"), given, replace(rules, score=lambda q, k: k @ q.T))
    yield from _of_values(given, rules)
    if heads > 1:
        order: Callable[[list[Tensor]], list[Tensor]] = lambda parts: parts[::-1]  # noqa: E731
        name = Text("the heads are joined in the wrong order")
        yield Cause(name, given, replace(rules, order=order))
    yield from _of_output(given, rules)


def _of_scale(given: Tables, rules: StepRules, scale: float) -> Iterator[Cause]:
    def scaled(name: Text, factor: float, kind: str = "") -> Cause:
        return Cause(name, given, replace(rules, scale=factor), kind)

    width = given["x", None].shape[1] if ("x", None) in given else None
    if rules.scale is None:
        yield scaled(Text("the scale 1/√d_k is missing"), 1.0, "unscaled")
        yield scaled(Text("divided by d_k instead of √d_k"), scale * scale)
        yield scaled(Text("multiplied by √d_k instead of divided"), 1 / scale)
        if width is not None and not math.isclose(width**-0.5, scale):
            yield scaled(Text("divided by √d_model instead of √d_k"), width**-0.5)
        for other in (2, 3, 4, 8, 16, 64):
            if not math.isclose(other**-0.5, scale):
                yield scaled(Text("divided by √{size}, which is not √d_k", size=other), other**-0.5)
    else:
        yield Cause(
            Text("scaled by 1/√d_k, which the text leaves out"), given, replace(rules, scale=None)
        )


def _of_mask(given: Tables, rules: StepRules) -> Iterator[Cause]:
    if rules.mask is not None and rules.mask.dtype == torch.bool:
        mask = rules.mask
        yield Cause(Text("the mask is missing"), given, replace(rules, mask=None), "unmasked")
        yield Cause(
            Text("the mask is applied after the softmax, and the rows are not normalised again"),
            given,
            replace(rules, block=lambda scores, _: scores, reweigh=_zeroed),
        )
        yield Cause(
            Text("blocked scores are set to 0 instead of minus infinity"),
            given,
            replace(rules, block=lambda scores, at: scores if at is None else scores * at),
        )
        if mask.dim() == 2 and mask.shape[0] == mask.shape[1]:
            yield Cause(Text("the mask is transposed"), given, replace(rules, mask=mask.T))
            eye = torch.eye(len(mask), dtype=torch.bool)
            yield Cause(Text("the mask hides the own key"), given, replace(rules, mask=mask & ~eye))
            later = mask | torch.ones_like(mask).tril(1)
            yield Cause(
                Text("the mask lets the next key through"), given, replace(rules, mask=later)
            )
        yield Cause(Text("the mask is inverted"), given, replace(rules, mask=~mask))
    elif rules.mask is None:
        sizes = _scores_of(given)
        if sizes is not None and sizes[0] == sizes[1]:
            causal = torch.ones(sizes, dtype=torch.bool).tril()
            name = Text("a causal mask is applied, of which the text says nothing")
            yield Cause(name, given, replace(rules, mask=causal), "masked")


def _zeroed(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights if mask is None else weights * mask


def _scores_of(given: Tables) -> tuple[int, int] | None:
    """The numbers of queries and of keys."""
    queries = next((len(t) for (name, _), t in given.items() if name in ("x", "q")), None)
    keys = next((len(t) for (name, _), t in given.items() if name in ("memory", "k")), queries)
    return None if queries is None or keys is None else (queries, keys)


def _of_softmax(given: Tables, rules: StepRules) -> Iterator[Cause]:
    def weighed(name: Text, weigh: Callable[[Tensor], Tensor]) -> Cause:
        return Cause(name, given, replace(rules, weigh=weigh))

    yield weighed(
        Text("the softmax runs over the wrong axis, down the columns"),
        lambda scores: scores.softmax(0).nan_to_num(0.0),
    )
    yield weighed(
        Text("the softmax runs over the whole matrix, not over each row"),
        lambda scores: scores.flatten().softmax(0).view_as(scores),
    )
    yield weighed(Text("the exponentials are not divided by their sum"), lambda s: s.exp())
    yield weighed(
        Text("divided by the sum of the scores, without exponentials"),
        lambda scores: scores / scores.sum(-1, keepdim=True),
    )
    yield weighed(
        Text("powers of 2 instead of e"), lambda scores: (scores * math.log(2)).softmax(-1)
    )
    yield weighed(
        Text("the softmax is applied twice"), lambda scores: scores.softmax(-1).softmax(-1)
    )


_SWAPS = (
    ("v", "k", Text("the weights are multiplied by K instead of V")),
    ("v", "q", Text("the weights are multiplied by Q instead of V")),
    ("k", "v", Text("V in the place of K")),
    ("k", "q", Text("Q in the place of K")),
    ("q", "k", Text("K in the place of Q")),
)


def _of_values(given: Tables, rules: StepRules) -> Iterator[Cause]:
    for name, other, text in _SWAPS:
        swapped = dict(given)
        for prefix in ("", "W_", "b_"):
            places = [place for place in given if place[0] == prefix + name]
            for place in places:
                if (prefix + other, place[1]) in given:
                    swapped[place] = given[prefix + other, place[1]]
        if any(swapped[place] is not given[place] for place in given):
            yield Cause(text, swapped, rules)
    yield from _of_weights(given, rules)


def _of_weights(given: Tables, rules: StepRules) -> Iterator[Cause]:
    x = given.get(("x", None))
    if x is None:
        return
    for name, text in (
        ("v", Text("the weights are multiplied by X instead of V")),
        ("q", Text("X in the place of Q")),
        ("k", Text("X in the place of K")),
    ):
        if (f"W_{name}", None) in given:
            eye = torch.eye(x.shape[1], dtype=torch.float64)
            yield Cause(text, {**given, (f"W_{name}", None): eye}, rules)
    for place, weight in given.items():
        if place[0].startswith("W_") and weight.shape[0] == weight.shape[1]:
            symbol = "W^" + place[0].removeprefix("W_").upper().replace("OUT", "O")
            name_turned = Text("{symbol} is transposed", symbol=symbol)
            yield Cause(name_turned, {**given, place: weight.T}, rules)
    for place, bias in given.items():
        if place[0].startswith("b_"):
            yield Cause(
                Text("the bias is missing"), {**given, place: torch.zeros_like(bias)}, rules
            )


def _of_output(given: Tables, rules: StepRules) -> Iterator[Cause]:
    if ("W_out", None) in given:
        yield Cause(
            Text("the output projection W^O is missing"),
            given,
            replace(rules, finish=lambda concat, _: concat),
        )
