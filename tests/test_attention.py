"""`attend`, `plan` and the validation of their arguments."""

import pytest
import torch

import headwise as hw
from headwise.call import Call, Result
from headwise.engines import sdpa
from headwise.errors import BadType, BadValue
from headwise.planning import PIECE, _Working
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import tensors


def test_without_need_the_output_with_need_a_result():
    q, k, v = tensors(dtype=torch.float32)
    result = hw.attend(q, k, v, need=["weights"])
    assert isinstance(result, Result)
    assert result.logsumexp is None
    assert repr(result) == "Result(output (2, 6, 5, 13), weights (2, 6, 5, 7))"
    call = Call.of(q, k, v)
    output = hw.attend(q, k, v)
    accept(output, reference(call, torch.float32).output, reference(call).output)
    accept(result.output, reference(call, torch.float32).output, reference(call).output)
    assert isinstance(hw.attend(q, k, v, need=[]), Result)


@pytest.mark.parametrize("engine", ["auto", "eager", "sdpa"])
def test_an_engine_asked_for_by_name_runs(engine):
    q, k, v = tensors(dtype=torch.float32)
    call = Call.of(q, k, v, mask=hw.causal())
    output = hw.attend(q, k, v, mask=hw.causal(), engine=engine)
    accept(output, reference(call, torch.float32).output, reference(call).output)


def test_a_bare_tensor_is_a_mask():
    q, k, v = tensors()
    pairs = torch.rand(5, 7) > 0.5
    assert torch.equal(
        hw.attend(q, k, v, mask=pairs), hw.attend(q, k, v, mask=hw.from_tensor(pairs, "q k"))
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": [1.0]}, BadType, "q: expected a tensor, got list"),
        ({"q": torch.zeros(5, 11)}, BadValue, r"q: expected a floating point tensor .*unflatten"),
        ({"k": torch.zeros(2, 3, 7, 11).long()}, BadValue, "k: expected a floating point tensor"),
        ({"k": torch.zeros(3, 3, 7, 11)}, BadValue, "batch size B of q, k and v must agree"),
        ({"k": torch.zeros(2, 3, 7, 10)}, BadValue, "head dim D of q and k must agree"),
        ({"v": torch.zeros(2, 6, 7, 13)}, BadValue, "head count G of k and v must agree"),
        ({"v": torch.zeros(2, 3, 8, 13)}, BadValue, "length Lk of k and v must agree"),
        ({"v": torch.zeros(2, 3, 7, 13).double()}, BadValue, "must have the same dtype"),
        ({"q": torch.zeros(2, 5, 5, 11)}, BadValue, "H must be a multiple of G .* H=5, G=3"),
        ({"mask": "causal"}, BadType, r"expected a mask, a tensor or None, got str; for example"),
        ({"mask": torch.ones(3, 3).bool()}, BadValue, "does not fit"),
        ({"scale": float("nan")}, BadValue, "scale: expected a finite number"),
        ({"scale": True}, BadValue, "scale: expected a finite number"),
        ({"dropout": 1.5}, BadValue, "dropout: expected a probability from 0 to 1, got 1.5"),
        ({"dropout": -0.1}, BadValue, "dropout: expected a probability"),
        ({"offset": 1.0}, BadType, "offset: expected an integer or None, got 1.0"),
        ({"need": "weights"}, BadType, r"need: .*; use need=\('weights',\)"),
        ({"need": ["wieghts"]}, BadValue, "need: unknown 'wieghts'; expected one of 'weights', 'l"),
        ({"engine": "cuda"}, BadValue, "unknown 'cuda'; expected one of 'auto', .*'eager'"),
    ],
)
@pytest.mark.parametrize("door", [hw.attend, hw.plan])
def test_bad_input_is_named_with_the_way_out(door, change, error, message):
    q, k, v = (t.detach() for t in tensors(dtype=torch.float32))
    arguments = {"q": q, "k": k, "v": v} | change
    with pytest.raises(error, match=message) as caught:
        door(**arguments)
    assert caught.value.text.zh != caught.value.text.en


def test_a_plan_names_the_engine_the_reasons_and_the_cost():
    q, k, v = tensors(300, 300, dtype=torch.float32)
    plan = hw.plan(q, k, v, mask=hw.causal(), need=["weights"])
    assert plan.engine == "eager"
    assert [reason.en for reason in plan.refused["sdpa"]] == ["it does not return weights"]
    assert plan.tiles == {"empty": 3, "mixed": 3, "full": 3}
    covered = 128 * 128 * 2 + 44 * 44 + 128 * 128 + 2 * 44 * 128  # diagonal tiles, then below it
    assert plan.share == covered / 300**2
    assert plan.flops == 2 * 2 * 6 * 300 * 300 * (11 + 13)
    moved = q.numel() + k.numel() + v.numel() + 2 * 6 * 300 * 13 + 2 * (2 * 6 * 300 * 300)
    assert plan.bytes == 4 * moved


@pytest.mark.parametrize(
    ("mask", "masks"),
    [
        (hw.full(), 0),
        (hw.causal(), 0),
        (~hw.window(3, 3), 1),
        (hw.padding([9, 5]), 2),
        (hw.per_head([hw.causal()] * 3 + [hw.full()] * 3), 6),
        (hw.padding([9, 5]) & hw.per_head([hw.causal()] * 3 + [hw.full()] * 3), 12),
    ],
    ids=str,
)
def test_a_plan_counts_the_mask_that_is_written_out(mask, masks):
    q, k, v = tensors(9, 9, dtype=torch.float32)
    moved = q.numel() + k.numel() + v.numel() + 2 * 6 * 9 * 13
    built = masks * 9 * 9 * (1 + 4)
    built += 4 * (k.numel() + v.numel()) if masks else 0  # without what is hidden
    assert hw.plan(q, k, v, mask=mask, engine="sdpa").bytes == 4 * moved + built


@pytest.mark.parametrize(
    "mask",
    [
        hw.strided(90),
        hw.window(300, 0),
        hw.documents([1000, 1048]) & hw.causal(),
        hw.from_tensor(torch.randn(2048, 2048), "q k"),
        hw.per_head([hw.strided(90)] * 2 + [hw.causal()] * 2),
    ],
    ids=str,
)
def test_a_plan_counts_what_the_rule_holds_while_it_is_written(mask):
    """Within what a page, a row for each query and the last copy of k or v come to."""
    q, k, v = torch.zeros(3, 1, 4, 2048, 8).unbind()
    call = Call.of(q, k, v, mask=mask)
    with _Working(2048) as working, torch.no_grad():
        sdpa.run(call)
    planned = hw.plan(q, k, v, mask=mask, engine="sdpa").bytes - 4 * 4 * q.numel()
    assert working.most <= planned + 4 * 4 * q.numel()
    assert planned <= working.most * (1 + 2 / PIECE) + 4 * 4 * q.numel()


def test_a_plan_counts_one_block_of_rows_and_nothing_for_tiles():
    q, k, v = (torch.zeros(1, 2, n, 8) for n in (4096, 4096, 4096))
    whole = 4 * 4 * 2 * 4096 * 8
    block = 2 * 2 * 256 * 4096 * 4
    assert hw.plan(q, k, v, engine="rows").bytes == whole + block
    assert hw.plan(q, k, v, mask=hw.window(5, 5), engine="tiled").bytes == whole


def test_a_plan_is_told_in_both_languages():
    plan = hw.plan(*tensors(), need=["entropy"])
    assert "why not sdpa: it does not return entropy" in str(plan)
    assert "不用 sdpa 的原因: 它不返回 entropy" in plan.describe("zh")


def test_a_plan_chooses_what_attend_runs():
    q, k, v = tensors(dtype=torch.float32)
    assert hw.plan(q, k, v).engine == "sdpa"
    assert hw.plan(q, k, v, engine="eager").engine == "eager"
    assert hw.plan(*tensors(0, 0)).share == 0


def test_a_plan_of_a_long_call_asks_for_large_rectangles():
    x = torch.zeros(1).expand(1, 8, 2**17, 64)
    side, mask = 2**17 // 128, hw.causal() & hw.padding([2**17 - 1])
    plan = hw.plan(x, x, x, mask=mask)
    below = side * (side - 1) // 2
    assert plan.tiles == {"empty": below, "mixed": side, "full": below}
    assert plan.share == (below + side) / side**2
    assert f"{below:,} 空，{side:,} 混合，{below:,} 满" in plan.describe("zh")


@pytest.mark.parametrize(("engine", "sparse"), [("tiled", True), ("sdpa", False)])
def test_the_work_that_is_planned_is_that_of_the_engine(engine, sparse):
    x = torch.zeros(1).expand(2, 6, 512, 11)
    plan = hw.plan(x, x, x, mask=hw.causal(), engine=engine)
    pairs = 10 * 128**2 if sparse else 512**2
    assert plan.flops == 2 * 2 * 6 * pairs * (11 + 11)
