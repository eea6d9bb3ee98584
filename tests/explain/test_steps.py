import json
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from headwise.cli.explain import EXAMPLE, TOKENS
from headwise.document import Document, Formula, Heading, Matrix, Paragraph, Working
from headwise.document.blocks import SideBySide, matrices_of
from headwise.document.formulas import math as drawable
from headwise.document.text_format import prose, spans
from headwise.errors import BadValue
from headwise.explain import trace as writer
from headwise.explain.array_files import TokenArray
from headwise.explain.matrix_blocks import matrix_blocks
from headwise.explain.steps import steps
from headwise.explain.trace import FORMULAS, KEYS, Projections, as_json, trace

X = torch.tensor(EXAMPLE, dtype=torch.float64)


def example(**options):
    return trace(X, 2, tokens=TOKENS, **options)


def matrices(document):
    return {matrix.symbol.plain: matrix.values for matrix in all_matrices(document)}


def all_matrices(document):
    kinds = Matrix | SideBySide
    return [m for b in document.blocks if isinstance(b, kinds) for m in matrices_of(b)]


def lines(document):
    return [f for b in document.blocks if isinstance(b, Working) for f in b.lines]


def value_of(line):
    """The number behind the last = or ≈ of a line, and what stands between the signs."""
    *_, middle, last = re.split(r" [=≈] ", f"x = {line.plain}")
    return middle, float(last)


def evaluated(expression):
    """A sum of products, a quotient or a power, as a person reads it from paper."""
    known = re.sub(r"√(\d+)", lambda m: repr(math.sqrt(int(m[1]))), expression)
    known = known.replace("×", "*")
    assert set(known) <= set("0123456789.+-*/() ")
    return eval(known, {"__builtins__": {}})  # noqa: S307 - only digits and operators, see above


def test_every_quantity_of_the_trace_stands_in_the_document():
    traced, symbols = example(), matrices(steps(example()))
    for quantity in traced.quantities:
        name = {"score": "S", "scaled": "S̃", "softmax": "A", "head": "head"}.get(quantity.key)
        if name:
            assert symbols[f"{name}_{quantity.head}"] == quantity.values.tolist()
    assert symbols["X"] == symbols["Q = K = V"] == X.tolist()
    assert symbols["Q_2"] == X[:, 2:].tolist()
    assert symbols["Output"] == symbols["Concat"] == traced.get("concat").tolist()
    assert "Ŝ_1" not in symbols


def test_the_five_steps_are_there_in_order_and_in_both_languages():
    heads = [b for b in steps(example()).blocks if isinstance(b, Heading) and b.level == 2]
    assert [b.text.en[:7] for b in heads] == [f"Step {i}:" for i in range(1, 6)]
    assert [b.text.zh[:5] for b in heads] == [f"第 {i} 步" for i in range(1, 6)]


@pytest.mark.parametrize("row", [None, 0, 2])
def test_what_is_written_out_is_true_as_it_stands(row):
    traced, precision = example(), 6
    document = steps(traced, row=row, precision=precision)
    i = row or 0
    sums = [line for line in lines(document) if re.match(r"s\[|s̃\[|a\[", line.plain)]
    assert len(sums) == 2 * 3 * 3
    for head in (1, 2):
        own = {key: traced.get(key, head)[i] for key in ("score", "scaled", "softmax")}
        for letter, key in (("s", "score"), ("s̃", "scaled"), ("a", "softmax")):
            part = [x for x in sums if x.plain.startswith(f"{letter}[{i},")][3 * (head - 1) :][:3]
            for line, exact in zip(part, own[key].tolist(), strict=True):
                how, value = value_of(line)
                assert value == float(f"{exact:.{precision}f}")
                assert round(evaluated(how), 4) == round(value, 4)


def test_the_weighted_sum_of_a_row_ends_in_the_output_of_the_head():
    traced = example()
    line = next(f for f in lines(steps(traced, row=1)) if f.plain.startswith("head_2[1]"))
    exact = traced.get("head", 2)[1].tolist()
    assert line.plain.endswith(f"≈ [{exact[0]:.4f}, {exact[1]:.4f}]")
    assert line.plain.count("×[") == 3


def test_exponentials_add_up_to_z():
    traced = example()
    written = [f.plain for f in lines(steps(traced))]
    powers = [float(line.split(" ≈ ")[1]) for line in written if line.startswith("e^")][:3]
    z = next(line for line in written if line.startswith("Z = "))
    exact = traced.get("scaled", 1)[0].exp()
    assert powers == [float(f"{v:.4f}") for v in exact.tolist()]
    assert z.endswith(f"≈ {exact.sum().item():.4f}")


def test_steep_scores_are_lowered_first_and_stay_finite():
    traced = trace(X * 1000, 2)
    document = steps(traced)
    assert not [line for line in lines(document) if "inf" in line.plain or "nan" in line.plain]
    said = [b.text for b in document.blocks if isinstance(b, Paragraph)]
    assert any("Subtract the largest score" in text.en for text in said)
    assert any("先减去最大的得分" in text.zh for text in said)


@pytest.mark.parametrize(("heads", "root"), [(1, "√4 = 2.0000"), (2, "√2 ≈ 1.4142")])
def test_an_exact_root_is_not_called_rounded(heads, root):
    traced = trace(torch.eye(4, dtype=torch.float64)[:3], heads)
    said = [b.text for b in steps(traced).blocks if isinstance(b, Paragraph)]
    for text in said:
        assert "Divide by" not in text.en or prose(text, "en") == f"Divide by √d_k = {root}:"
    assert any(prose(text, "zh") == f"除以 √d_k = {root}：" for text in said)


def test_an_own_scale_is_named():
    document = steps(example(scale=0.25))
    assert any("×0.25 = 0.3650" in line.plain for line in lines(document))
    assert any(isinstance(b, Formula) and "c Q_h" in b.plain for b in document.blocks)


@pytest.mark.parametrize(
    ("mask", "blind"),
    [(hw.causal(), []), (hw.window(1, 0), []), (~hw.window(0, 2), [0]), (~hw.full(), [0, 1, 2])],
)
def test_masks_and_fully_masked_rows_are_shown(mask, blind):
    traced = example(mask=mask)
    document = steps(traced)
    allowed = [[cell == "■" for cell in row.split()] for row in mask.draw(3).splitlines()]
    assert [[v > -math.inf for v in row] for row in matrices(document)["Ŝ_1"]] == allowed
    said = [b.text.en for b in document.blocks if isinstance(b, Paragraph)]
    about = [text for text in said if text.startswith("Fully masked queries")]
    listed = ", ".join(map(str, blind))
    assert about == (
        [f"Fully masked queries ({listed}) have weights 0 and output 0."] * 2 if blind else []
    )
    assert any("the weights of a fully masked query are all 0" in text for text in said) == bool(
        blind
    )
    assert ("This query is fully masked, so its weights and its output are 0." in said) == (
        blind == [0, 1, 2]
    )


def test_a_bias_is_added_in_the_working():
    bias = torch.tensor([[0.5, -math.inf, 0.0]] * 3, dtype=torch.float64)
    written = [f.plain for f in lines(steps(example(mask=hw.from_tensor(bias))))]
    assert "ŝ[0,0] = 1.0324 + 0.5 ≈ 1.5324" in written
    assert "ŝ[0,1] = -∞" in written
    assert "ŝ[0,2] = s̃[0,2] ≈ 0.2687" in written
    assert "e^-inf = 0.0000" in written


def test_weights_are_shown_as_the_paper_has_them():
    rows = torch.randn(3, 6, 5, dtype=torch.float64)
    weights = Projections(*rows, torch.randn(5, 6, dtype=torch.float64), v_bias=torch.ones(6))
    x = torch.randn(3, 5, dtype=torch.float64)
    symbols = matrices(steps(trace(x, 2, projections=weights)))
    assert symbols["W^Q"] == rows[0].T.tolist()
    assert symbols["W^O"] == weights.out.T.tolist()
    assert symbols["b^V"] == [[1.0] * 6]
    assert "b^Q" not in symbols


def test_a_large_input_is_summarised_and_one_head_can_be_opened():
    x = torch.randn(23, 30, dtype=torch.float64)
    traced = trace(x, 6)
    short, opened = steps(traced), steps(traced, head=5, row=19)
    assert max(len(v) for v in matrices(short).values()) <= 12
    assert {name for name in matrices(short) if name.startswith("A_")} == {"A_1[0..3, 0..3]"}
    assert matrices(opened)["A_5"] == traced.get("softmax", 5).tolist()
    rows = [line.plain for line in lines(opened) if line.plain.startswith("a[19,")]
    assert len(rows) == 23
    kept = [line.plain for line in lines(short) if line.plain.startswith("a[0,")]
    strongest = traced.get("softmax", 1)[0].argsort(descending=True)[:12].sort().values.tolist()
    assert [int(re.match(r"a\[0,(\d+)\]", line)[1]) for line in kept] == strongest


def test_of_many_keys_only_those_that_are_seen_are_written_out():
    x = torch.randn(17, 4, dtype=torch.float64)
    traced = trace(x, 1, mask=hw.window(2, 1))
    written = [line.plain for line in lines(steps(traced, row=9))]
    assert [line[:7] for line in written if line.startswith("a[")] == [
        "a[9,7] ",
        "a[9,8] ",
        "a[9,9] ",
        "a[9,10]",
    ]
    assert not [line for line in written if line.startswith("Z = ") and "…" in line]
    whole = [line.plain for line in lines(steps(trace(x, 1)))]
    assert [line for line in whole if line.startswith("Z = ") and "…" in line]
    blind = steps(trace(x, 1, mask=~hw.full()))
    assert not [line for line in lines(blind) if line.plain.startswith("a[")]


def test_the_summary_of_a_matrix_says_shape_and_range():
    values = torch.arange(26.0).reshape(13, 2)
    values[3, 0] = -torch.inf
    paragraph, corner = matrix_blocks(values, Formula("M", "M"), 1)
    assert paragraph.text.en.startswith("M: 13 × 2, from 0.0 to 25.0, mean 12.8, 1 entries are −∞")
    assert corner.values == values[:4, :2].tolist()
    blocked = torch.full((13, 1), -torch.inf)
    assert "all entries are −∞" in matrix_blocks(blocked, Formula("M", "M"), 1)[0].text.en


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": 0}, r"head: expected an integer from 1 to 2, got 0"),
        ({"head": 3}, r"head: expected an integer from 1 to 2, got 3"),
        ({"row": -1}, r"row: expected an integer from 0 to 2, got -1"),
        ({"row": 3}, r"row: expected an integer from 0 to 2, got 3"),
        ({"precision": 16}, r"precision: expected an integer from 0 to 15, got 16"),
    ],
)
def test_what_is_not_there_is_refused(options, message):
    with pytest.raises(BadValue, match=message):
        steps(example(), **options)


@given(
    st.integers(1, 5),
    st.sampled_from([1, 2, 3]),
    st.integers(0, 15),
    st.sampled_from([None, hw.causal(), hw.window(1, 0), ~hw.full()]),
    st.floats(0.001, 1e6),
)
def test_every_formula_can_be_drawn_whatever_the_input(length, heads, precision, mask, size):
    traced = trace(torch.randn(length, 6, dtype=torch.float64) * size, heads, mask=mask)
    document = steps(traced, precision=precision)
    assert isinstance(document, Document)
    formulas = [b for b in document.blocks if isinstance(b, Formula)] + lines(document)
    formulas += [matrix.symbol for matrix in all_matrices(document)]
    assert all(drawable(formula) for formula in formulas)


def strict(text):
    """JSON without NaN or Infinity."""

    def refuse(word):
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_json_holds_every_number_exactly():
    traced = example(mask=hw.causal())
    found = strict(as_json(traced))
    assert found["tokens"] == list(TOKENS)
    assert (found["heads"], found["scale"]) == (2, 1 / math.sqrt(2))
    assert found["changed_by_mask"]
    assert list(found["formulas"]) == list(KEYS) == list(FORMULAS)
    assert len(found["quantities"]) == len(traced.quantities)
    for quantity, written in zip(traced.quantities, found["quantities"], strict=True):
        assert (written["key"], written["head"]) == (quantity.key, quantity.head)
        values = [[-math.inf if v is None else v for v in row] for row in written["values"]]
        assert values == quantity.values.tolist()
        assert written["shape"] == list(quantity.values.shape)
        assert written["name"]["zh"]


def test_json_of_one_head_and_at_a_precision():
    found = strict(as_json(example(), head=2, precision=3))
    assert {q["head"] for q in found["quantities"]} == {None, 2}
    output = next(q["values"] for q in found["quantities"] if q["key"] == "output")
    assert output[0] == [0.847, 0.872, 0.200, 0.233]
    with pytest.raises(BadValue, match=r"head: expected an integer from 1 to 2, got 5"):
        as_json(example(), head=5)


def test_json_is_bounded(monkeypatch):
    monkeypatch.setattr(writer, "MOST_NUMBERS", 100)
    with pytest.raises(BadValue, match=r"format: JSON can contain at most 100 numbers, got \d+"):
        as_json(example())


def of_name(document, name):
    return next(m for m in all_matrices(document) if m.symbol.plain == name)


def test_the_weights_are_coloured_and_what_is_masked_is_known():
    weights = of_name(steps(example(mask=hw.causal())), "A_1")
    assert weights.heat
    assert weights.masked == [[False, True, True], [False, False, True], [False] * 3]
    assert not of_name(steps(example()), "A_1").masked
    assert not of_name(steps(example()), "S_1").heat


@pytest.mark.parametrize(
    ("mask", "row", "worked"),
    [(None, None, 0), (hw.causal(), None, 2), (hw.causal(), 1, 1), (hw.window(0, 1), None, 0)],
)
def test_the_worked_row_is_marked(mask, row, worked):
    document = steps(example(mask=mask), row=row)
    assert {of_name(document, name).marked for name in ("S_1", "A_2", "head_1", "Q_1")} == {worked}
    assert of_name(document, "K_1").marked is None
    titles = [b.text.en for b in document.blocks if isinstance(b, Heading) and b.level == 4]
    assert titles[0].startswith(f"Derivation of head 1, row {worked} ")


def test_matrices_that_belong_together_stand_side_by_side():
    document = steps(example(projections=Projections(*torch.randn(4, 4, 4).double())))
    groups = [
        [m.symbol.plain for m in b.matrices] for b in document.blocks if isinstance(b, SideBySide)
    ]
    assert groups == [
        ["W^Q", "W^K", "W^V"],
        ["Q", "K", "V"],
        ["Q_1", "K_1", "V_1"],
        ["Q_2", "K_2", "V_2"],
    ]


def test_no_symbol_stands_raw_in_prose():
    options = (
        {},
        {"mask": hw.causal()},
        {"scale": 0.3},
        {"position": hw.Rotary(2, pairs="halves")},
    )
    for document in (steps(example(**each)) for each in options):
        said = [b.text for b in document.blocks if isinstance(b, Paragraph | Heading)]
        for text, lang in ((t, lang) for t in said for lang in ("en", "zh")):
            outside = "".join(piece for piece, formula in spans(text, lang) if not formula)
            assert not re.search(r"[A-Za-z]_[A-Za-z]|√[a-z]|\\", outside), outside


def test_positions_and_other_keys_are_shown():
    kv = TokenArray(torch.randn(4, 4, dtype=torch.float64), ("a", "b", "c", "d"))
    document = steps(example(kv=kv, position=hw.ALiBi(2)))
    assert of_name(document, "X_kv").rows == ("a", "b", "c", "d")
    assert of_name(document, "P_2").columns == ("a", "b", "c", "d")
    assert any("K = X_kv W^K" in b.plain for b in document.blocks if isinstance(b, Formula))
    turned = steps(example(position=hw.Rotary(2, pairs="halves")))
    assert (
        of_name(turned, "Q'_1").values
        == example(position=hw.Rotary(2, pairs="halves")).get("turned_q", 1).tolist()
    )
    placed = steps(example(position=hw.Sinusoidal(4)))
    assert of_name(placed, "X + P").values != X.tolist()
