"""The benchmark harness: it rejects wrong results, and the page shows every missed requirement."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import headwise as hw
from benchmarks import cases, memory, page, peers, run, timing
from benchmarks.work import DIM, HEADS, OURS, ROOF, Asked, Case, Contender, Work, window_flops
from headwise.call import Call
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept

LENGTH = 131
THEIRS = "theirs"


def small(mine: Contender, theirs: Contender, *, backward: bool = False) -> Case:
    """Plain attention at a length that takes no time."""
    return Case(
        "small",
        Asked(0, {THEIRS: 1.0}),
        LENGTH,
        window_flops(LENGTH, LENGTH),
        {OURS: mine, THEIRS: theirs},
        cases.fixed(hw.full()),
        (THEIRS,),
        backward=backward,
        gate=LENGTH,
    )


def shifted(work: Work) -> object:
    """Wrong in every result."""
    return lambda: [each + 0.01 for each in peers.sdpa()(work)()]


def wrong_gradient(work: Work) -> object:
    """Right forward, wrong in the last gradient alone."""

    def attend() -> list[torch.Tensor]:
        *right, last = peers.sdpa()(work)()
        return [*right, last * 1.01]

    return attend


def crashing(work: Work) -> object:
    raise MemoryError("more than there is")


def test_the_gate_lets_the_right_pass() -> None:
    assert timing.gate(small(cases.ours(), peers.sdpa(), backward=True)) is None


@pytest.mark.parametrize("backward", [False, True])
def test_the_gate_stops_a_wrong_result_of_ours(backward: bool) -> None:
    with pytest.raises(SystemExit, match="headwise is wrong; nothing was measured"):
        timing.gate(small(shifted, peers.sdpa(), backward=backward))


def test_the_gate_stops_a_wrong_gradient() -> None:
    with pytest.raises(SystemExit, match="headwise is wrong; nothing was measured"):
        timing.gate(small(wrong_gradient, peers.sdpa(), backward=True))


def test_the_gate_stops_a_peer_that_computes_something_else() -> None:
    with pytest.raises(SystemExit, match="theirs is wrong; nothing was measured"):
        timing.gate(small(cases.ours(), shifted))


@pytest.mark.parametrize(
    ("peer", "mask", "position", "backward"),
    [
        (peers.sdpa(), hw.full(), None, False),
        (peers.sdpa(is_causal=True), hw.causal(), None, True),
        (peers.unfolded(17, 5), hw.window(17, 5), None, True),
        (peers.unfolded(257, 263), hw.window(257, 263), None, False),
        (peers.shaw_gathered(cases.table, cases.SHAW), hw.full(), cases.SHAW, True),
        (
            peers.transformer_xl_shifted(cases.terms, cases.TRANSFORMER_XL),
            hw.full(),
            cases.TRANSFORMER_XL,
            True,
        ),
    ],
)
def test_peers_written_here_compute_what_they_should(
    peer: Contender, mask: hw.Mask, position: hw.Position | None, backward: bool
) -> None:
    def expected(dtype: torch.dtype) -> list[torch.Tensor]:
        work = Work.drawn(LENGTH, dtype, backward=backward)
        where = None if position is None else position.to(dtype)
        call = Call.of(*qkv(work), mask=mask, position=where)
        learned = () if where is None else tuple(where.parameters())
        return work.done(reference(call, dtype).output, learned)

    plain, exact = expected(torch.float32), expected(torch.float64)
    if position is not None:
        position.float()
    found = peer(Work.drawn(LENGTH, torch.float32, backward=backward))()
    for results in zip(found, plain, exact, strict=True):
        accept(*results)


def qkv(work: Work) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return work.q, work.k, work.v


@pytest.mark.parametrize("length", [1021, 127])
def test_lsh_of_the_benchmark_is_the_reference_under_its_mask(length: int) -> None:
    """The Reformers hash with their own numbers, so that the gate has nobody to compare with."""
    mask = hw.lsh(cases.ROUNDS, chunk=cases.CHUNK, seed=0, own=False)
    work = Work.drawn(length, torch.float32, backward=False)
    q, v = work.q, work.v
    k = torch.nn.functional.normalize(q, dim=-1)
    plain = reference(Call.of(q, k, v, mask=mask), torch.float32).output
    wide = Call.of(q.double(), k.double(), v.double(), mask=mask)
    accept(cases.ours_hashed(work)()[0], plain, reference(wide, torch.float64).output)


def test_work_is_the_same_numbers_in_every_dtype() -> None:
    single, double = (
        Work.drawn(LENGTH, dtype, backward=True) for dtype in (torch.float32, torch.float64)
    )
    assert single.grad is not None
    assert double.grad is not None
    assert torch.equal(single.grad, double.grad.float())
    assert all(torch.equal(a, b.float()) for a, b in zip(qkv(single), qkv(double), strict=True))


@pytest.mark.parametrize(("left", "right"), [(17, 5), (0, 0), (23, 0)])
def test_flops_of_a_window_are_those_of_its_pairs_but_for_the_edges(left: int, right: int) -> None:
    place = torch.arange(LENGTH)
    behind = place[:, None] - place
    pairs = int(((behind <= left) & (-behind <= right)).sum())
    edges = left * (left + 1) // 2 + right * (right + 1) // 2
    assert window_flops(left, right)(LENGTH) == 4 * HEADS * DIM * (pairs + edges)


def test_turns_alternate_after_one_call_to_warm_up() -> None:
    seen: list[str] = []
    found = timing.in_turns({name: lambda name=name: seen.append(name) for name in "ab"}, turns=3)
    assert "".join(seen) == "ab" * 4
    assert set(found) == {"a", "b"}


def test_a_peer_that_crashes_is_told_and_loses_nobody_elses_figures() -> None:
    row = timing.measure(dataclasses.replace(small(cases.ours(), crashing), same=()))
    assert set(row["seconds"]) == {OURS, ROOF}
    assert row["failed"] == {THEIRS: "MemoryError: more than there is"}
    told = [v for v in page.verdicts(row) if "failed" in v.what]
    assert [v.measured for v in told] == ["MemoryError: more than there is"]


def test_a_process_that_fails_is_a_row_that_says_so() -> None:
    row = run._child("time: none", "benchmarks.of_nothing", "0")
    assert "of_nothing" in row["error"]
    assert [verdict.holds for verdict in page.verdicts(row)] == [False]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak")
def test_growth_sees_what_a_call_holds_and_gives_back() -> None:
    size = 96 << 20

    def make(work: Work) -> object:
        held = 2 * size if work.q.shape[2] == LENGTH else 0  # the call to warm up needs none
        return lambda: [torch.ones(held, dtype=torch.uint8)[:1].clone()]

    grown = memory.growth(memory.Case("bytes", 0, LENGTH, {OURS: make}), OURS, LENGTH)
    assert size < grown < 3 * size  # the kernel counts pages a little late


def timed_row(times: float, share: float) -> dict[str, object]:
    return {
        "key": "time: x",
        "case": "x",
        "length": LENGTH,
        "line": 4,
        "seconds": {OURS: {"wall": 1.0, "cpu": 2.0}},
        "times": {THEIRS: times, "unasked": 0.5},
        "cpu_times": {THEIRS: times, "unasked": 0.5},
        "share_of_roof": {OURS: share},
        "asked_times": {THEIRS: 2.0},
        "asked_roof": 0.5,
        "failed": {},
    }


def held_row(mine: int | None, theirs: int | None) -> dict[str, object]:
    return {
        "key": "memory: x",
        "case": "x",
        "length": LENGTH,
        "line": 8,
        "bytes": {OURS: mine, THEIRS: theirs},
        "output_bytes": 100,
        "asked_share": {THEIRS: 0.25},
        "asked_outputs": 2.0,
        "asked_bytes": 200,
    }


def grown_row(measured: float) -> dict[str, object]:
    return {"key": "growth: x", "case": "x", "line": 8, "asked": 4.4, "measured": measured}


@pytest.mark.parametrize(
    ("row", "holds"),
    [
        (timed_row(2.0, 0.5), [True, None, True]),
        (timed_row(1.99, 0.49), [False, None, False]),
        (held_row(200, 800), [True, True, True]),
        (held_row(201, 800), [False, False, False]),
        (held_row(200, None), [None, True, True]),
        (held_row(None, 800), [False]),
        (grown_row(4.4), [True]),
        (grown_row(4.5), [False]),
    ],
)
def test_a_figure_holds_exactly_when_it_reaches_what_was_asked(
    row: dict[str, object], holds: list[bool | None]
) -> None:
    assert [verdict.holds for verdict in page.verdicts(row)] == holds


def test_the_page_shows_every_miss() -> None:
    rows = [timed_row(1.0, 0.1), {**grown_row(9.0)}, {"key": "time: y", "error": "out of memory"}]
    text = page.written({"processor": "any"}, rows)
    missed = [line for line in text.splitlines() if line.endswith("| ✗ |")]
    assert len(missed) == 4
    assert any("out of memory" in line for line in missed)


def asked() -> Iterator[tuple[str, set[str], set[str]]]:
    for case in cases.CASES:
        yield case.name, set(case.contenders), {OURS, *case.asked.times, *case.same}
    for held in memory.CASES:
        yield held.name, set(held.contenders), {OURS, *held.share}


@pytest.mark.parametrize(("name", "there", "wanted"), list(asked()))
def test_whoever_is_asked_for_contends(name: str, there: set[str], wanted: set[str]) -> None:
    assert wanted <= there, f"{name}: add {wanted - there} to its contenders"


def test_lines_4_to_11_are_all_measured() -> None:
    lines = {case.asked.line for case in cases.CASES} | {case.line for case in memory.CASES}
    assert lines | {8} >= set(range(4, 12))


def test_no_two_cases_have_one_name() -> None:
    names = [case.name for case in cases.CASES]
    held = [(case.name, case.length) for case in memory.CASES]
    assert len(set(names)) == len(names)
    assert len(set(held)) == len(held)
