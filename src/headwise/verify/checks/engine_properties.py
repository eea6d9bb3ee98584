"""The properties that every attention engine must have; mistakes refer to their names."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from headwise.call import Call
from headwise.lang import Text
from headwise.masks import Mask, causal, from_tensor, full, padding, window
from headwise.positions import Stage
from headwise.reference import reference
from headwise.verify.checks import Check, Subject, attend, yes_or_no
from headwise.verify.checks.engine_cases import CASES, Case
from headwise.verify.oracle.tolerance import (
    Evidence,
    judge,
    judge_gradients,
    judge_output,
    steps_of,
)

SMALL = 300  # gradients are judged only if Lq times Lk is at most this


def forward(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check that the output of every case equals the oracle's, for two seeds."""
    for case in CASES:
        for seed in (0, 1):
            call = case.call(dtype, seed=seed)
            result = attend(subject, call)
            if result is not None:
                yield case.name, judge_output(result, call)


def gradients(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check the gradients of every small case."""
    for case in CASES:
        call = case.call(dtype, grad=True)
        result = attend(subject, call) if case.queries * case.keys <= SMALL else None
        if result is None:
            continue
        plain, exact = (steps.output for steps in steps_of(call))
        leaves = {"q": call.q, "k": call.k, "v": call.v, **dict(call.position.named_parameters())}
        for name, verdict in judge_gradients(result.output, plain, exact, leaves):
            yield f"{case.name}: {name}", verdict


def weights(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check the attention weights, if they are returned."""
    yield from _returned("weights", subject, dtype)


def logsumexp(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Check the logsumexp, if it is returned."""
    yield from _returned("logsumexp", subject, dtype)


def _returned(quantity: str, subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    for case in CASES:
        call = case.call(dtype, need=(quantity,))
        result = attend(subject, call)
        values = getattr(result, quantity, None)
        if values is not None:
            plain, exact = (getattr(steps, quantity) for steps in steps_of(call))
            yield case.name, judge(values, plain, exact)


def scale_closed_form(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Scaled scores 0 and 1 give the weights [1, e] / (1 + e), read off with unit values."""
    dim = 5
    q, k = torch.zeros(1, 2, 1, dim, dtype=dtype), torch.zeros(1, 2, 2, dim, dtype=dtype)
    q[..., 0], k[:, :, 1, 0] = math.sqrt(dim), 1.0
    call = Call.of(q, k, torch.eye(2, dtype=dtype).expand(1, 2, 2, 2))
    exact = torch.tensor([1.0, math.e], dtype=torch.float64) / (1 + math.e)
    yield from _against(subject, call, exact.expand(1, 2, 1, 2))


def equal_scores_mean(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """A query of zeros gives the mean of the values for any other queries."""
    call = _sized(queries=7).call(dtype)
    q = call.q.clone()
    q[:, :, 0] = 0.0
    call = replace(call, q=q)
    yield from _row("query 0", subject, call, 0, call.v.double().mean(-2))


def one_key_copies(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """A query that may attend to one key only gives the value of that key."""
    call = _sized(mask=window(0, 0), queries=7).call(dtype)
    yield from _against(subject, call, call.v.double())


def rows_sum_to_one(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Values of 1 give outputs of 1, and of 0 in a fully masked row."""
    for case in CASES:
        call = case.call(dtype)
        if Stage.VALUES in call.position.stages:
            continue
        call = replace(call, v=torch.ones_like(call.v))
        seen = call.allowed().any(-1, keepdim=True).expand(case.batch, case.heads, -1, -1)
        exact = seen.double().expand(-1, -1, -1, case.value_dim)
        for name, verdict in _against(subject, call, exact):
            yield f"{case.name}: {name}", verdict


def heads_independent(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Changing the queries of head 1 does not change the other heads."""
    call = _sized(queries=7).call(dtype)
    q = call.q.clone()
    q[:, 1] = -q[:, 1]
    yield from _unchanged(subject, call, replace(call, q=q), (slice(None), [0, 2]))


def samples_independent(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Changing sample 1 does not change sample 0."""
    call = _sized(queries=7).call(dtype)
    q, k, v = (torch.cat((x[:1], -x[1:])) for x in (call.q, call.k, call.v))
    yield from _unchanged(subject, call, replace(call, q=q, k=k, v=v), (slice(0, 1),))


def group_order(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Query head h uses key/value head h // (H / G): with one key, it gives that value."""
    call = _sized(heads=6, groups=3, keys=1).call(dtype)
    exact = torch.stack([call.v[:, h // 2] for h in range(6)], dim=1).double()
    yield from _against(subject, call, exact.expand(-1, -1, call.shape.queries, -1))


def no_future_leak(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Under a causal mask, the last key does not affect earlier queries."""
    call = _sized(mask=causal(), queries=7).call(dtype)
    k, v = call.k.clone(), call.v.clone()
    k[:, :, -1], v[:, :, -1] = -k[:, :, -1], -v[:, :, -1] + 1
    before = (slice(None), slice(None), slice(0, -1))
    yield from _unchanged(subject, call, replace(call, k=k, v=v), before)


def own_key_visible(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Under a causal mask, the first query attends to its own key only."""
    call = _sized(mask=causal(), queries=7).call(dtype)
    yield from _row("query 0", subject, call, 0, call.v[:, :, 0].double())


def lower_right(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """With fewer queries than keys, the last causal query attends to all keys."""
    call = _sized(mask=causal()).call(dtype)
    call = replace(call, q=torch.zeros_like(call.q))
    yield from _row("the last query", subject, call, -1, call.v.double().mean(-2))


def blind_rows_zero(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """A fully masked row gives 0, for every kind of mask."""
    empty = torch.zeros(5, 7, dtype=torch.bool)
    blind: tuple[tuple[str, Mask], ...] = (
        ("padding", padding([0, 0])),
        ("booleans", from_tensor(empty)),
        ("-inf", from_tensor(empty.float() - torch.inf)),
    )
    for name, mask in blind:
        call = _sized(mask=mask).call(dtype)
        for _, verdict in _against(subject, call, torch.zeros(2, 3, 5, 13, dtype=torch.float64)):
            yield name, verdict


def padding_without_influence(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """The contents of padded keys and values have no influence."""
    call = _sized(mask=padding([5, 3])).call(dtype)
    k, v = call.k.clone(), call.v.clone()
    k[:, :, 5:] += 3.0
    v[:, :, 5:] += 3.0
    yield from _unchanged(subject, call, replace(call, k=k, v=v), ())


def padding_nan(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """NaN and inf in padded keys and values have no influence."""
    call = _sized(mask=padding([5, 3])).call(dtype)
    k, v = call.k.clone(), call.v.clone()
    k[:, :, 5:], v[:, :, 5:] = torch.nan, torch.inf
    yield from _unchanged(subject, call, replace(call, k=k, v=v), ())


def padding_of_own_sample(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Each sample has its own padding: equal scores give the mean of the sample's real values."""
    lengths = [5, 3]
    call = _sized(mask=padding(lengths)).call(dtype)
    call = replace(call, q=torch.zeros_like(call.q))
    means = [call.v[b, :, :n].double().mean(-2) for b, n in enumerate(lengths)]
    exact = torch.stack(means)[:, :, None].expand(-1, -1, call.shape.queries, -1)
    yield from _against(subject, call, exact)


def float32_softmax(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """Small differences between large biases are not lost, even with half-precision values."""
    small = torch.promote_types(dtype, torch.float32) if dtype == torch.float64 else torch.bfloat16
    bias = 100.0 + 0.2 * torch.arange(7.0).expand(5, 7)
    call = _sized(mask=from_tensor(bias)).call(small)
    call = replace(call, q=torch.zeros_like(call.q))
    result = attend(subject, call)
    if result is not None:
        yield "float bias", judge_output(result, call)


def dropout_on_weights(subject: Subject, dtype: torch.dtype) -> Iterator[Evidence]:
    """With equal scores, values of 1 and p = 1/2, an output times n / 2 is a count of keys."""
    keys, half = 7, 0.5
    q, k = (torch.zeros(2, 3, n, 11, dtype=dtype) for n in (5, keys))
    call = Call.of(q, k, torch.ones(2, 3, keys, 13, dtype=dtype), dropout=half)
    result = attend(subject, call)
    if result is None:
        return
    shares = result.output[..., 0].double() * keys * half
    certain = bool((shares == shares.flatten()[0]).all())
    plain = torch.full_like(result.output, 1 / (keys * half))[..., 0].double() * keys * half
    yield "counts", judge(shares.to(dtype), shares.round() * plain, shares.round())
    yield "it drops", yes_or_no(not certain)


def _sized(
    *, mask: Mask | None = None, queries: int = 5, keys: int = 7, heads: int = 3, groups: int = 3
) -> Case:
    own = full() if mask is None else mask
    return Case("", lambda _c, _d: own, 2, heads, groups, queries, keys)


def _against(subject: Subject, call: Call, exact: Tensor) -> Iterator[Evidence]:
    result = attend(subject, call)
    if result is not None:
        yield "closed form", judge(result.output, reference(call, call.q.dtype).output, exact)


def _row(name: str, subject: Subject, call: Call, row: int, exact: Tensor) -> Iterator[Evidence]:
    result = attend(subject, call)
    if result is not None:
        plain = reference(call, call.q.dtype).output[:, :, row]
        yield name, judge(result.output[:, :, row], plain, exact)


def _unchanged(
    subject: Subject, call: Call, other: Call, part: tuple[slice | list[int], ...]
) -> Iterator[Evidence]:
    """Check that a part of both calls' outputs equals the oracle of the first call."""
    for name, item in (("before", call), ("after", other)):
        result = attend(subject, item)
        if result is not None:
            plain, exact = steps_of(call)
            yield name, judge(result.output[part], plain.output[part], exact.output[part])


PROPERTIES: tuple[Check, ...] = (
    Check.of(forward, Text("outputs equal the oracle")),
    Check.of(gradients, Text("gradients equal the oracle's")),
    Check.of(weights, Text("weights equal the oracle's")),
    Check.of(logsumexp, Text("logsumexp equals the oracle's")),
    Check.of(scale_closed_form, Text("scaled scores 0 and 1 give [1, e]/(1+e)")),
    Check.of(equal_scores_mean, Text("equal scores give the mean of v")),
    Check.of(one_key_copies, Text("one visible key copies its v")),
    Check.of(rows_sum_to_one, Text("the weights of a query sum to 1")),
    Check.of(heads_independent, Text("a head does not see the others")),
    Check.of(samples_independent, Text("a sample does not see the others")),
    Check.of(group_order, Text("query head h reads key head h // (H/G)")),
    Check.of(no_future_leak, Text("causal: the future has no influence")),
    Check.of(own_key_visible, Text("causal: a query sees its own key")),
    Check.of(lower_right, Text("causal: the last query sees every key")),
    Check.of(blind_rows_zero, Text("a query that sees no key gives 0")),
    Check.of(padding_without_influence, Text("padded keys have no influence")),
    Check.of(padding_nan, Text("NaN in padded keys has no influence")),
    Check.of(padding_of_own_sample, Text("each sample has its own padding")),
    Check.of(float32_softmax, Text("bias and softmax are in float32 at least")),
    Check.of(dropout_on_weights, Text("dropout acts on the weights")),
)
