"""The published JSON schema: every report satisfies it, and other data violates it."""

import copy
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from headwise.errors import BadFile
from headwise.lang import Translated
from headwise.verify import verify
from headwise.verify.report import data, unusable
from headwise.verify.report.formats import faults, schema
from headwise.verify.target import load

WRONG = Path(__file__).parent / "targets" / "wrong.py"


@pytest.fixture(scope="module")
def reports() -> list[dict]:
    """One report of every kind."""
    named = f"{WRONG}:no_scale_function"
    targets = ((nn.MultiheadAttention, "right"), (load(named), named))
    found = [data(verify(target, name)) for target, name in targets]
    found.append(data(verify(F.scaled_dot_product_attention, "fused")))
    found.append(data(verify(nn.TransformerDecoderLayer(15, 3, 7, batch_first=True), "layer")))
    return [*found, unusable("f.py:f", BadFile(Translated("no", "无")))]


def test_every_report_keeps_to_the_schema(reports) -> None:
    for report in reports:
        assert faults(report) == []
        written = json.dumps(report, allow_nan=False)
        assert faults(json.loads(written)) == []
    statuses = {report["status"] for report in reports}
    assert statuses == {"accepted", "differs", "unproven", "unusable"}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema",), 1, r"\$\.schema: expected 3"),
        (("schema",), True, r"\$\.schema: expected 3"),
        (("status",), "fine", r"\$\.status: expected one of"),
        (("accepted",), 1, r"\$\.accepted: expected boolean, got int"),
        (("heads",), 0, r"\$\.heads: expected at least 1"),
        (("heads",), True, r"\$\.heads: expected integer, got bool"),
        (("step",), "nowhere", r"\$\.step: expected one of"),
        (("mistakes",), [[]], r"\$\.mistakes\[0\]: expected at least 1 items"),
        (("notes",), [{"en": "a"}], r"\$\.notes\[0\]: zh is missing"),
        (("notes",), [{"en": "a", "zh": "b", "fr": "c"}], r"\$\.notes\[0\]: fr is not expected"),
        (("checks", 0, "times"), "2", r"\$\.checks\[0\]\.times: expected number or null, got str"),
        (("checks", 0, "times"), -1.0, r"\$\.checks\[0\]\.times: expected at least 0"),
        (("checks", 0), None, r"\$\.checks\[0\]: expected object, got NoneType"),
    ],
)
def test_what_does_not_keep_to_it_is_told(reports, path, value, said: str) -> None:
    report = copy.deepcopy(reports[1])
    *outer, last = path
    inner = report
    for step in outer:
        inner = inner[step]
    inner[last] = value
    with pytest.raises(AssertionError, match=said):
        assert not faults(report), faults(report)[0]


def test_a_report_without_its_findings_is_none(reports) -> None:
    for report in reports:
        for name in report:
            if name not in ("embed_dim", "error") and report["status"] == "unusable":
                continue
            less = {key: value for key, value in report.items() if key != name}
            assert any(f"{name} is missing" in fault for fault in faults(less)), name


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    )
)
def test_anything_else_is_no_report_and_no_crash(value) -> None:
    assert faults(value)


@pytest.mark.skipif(find_spec("jsonschema") is None, reason="a second opinion: needs jsonschema")
@given(choice=st.data())
def test_another_validator_says_the_same(reports, choice) -> None:
    import jsonschema

    report = copy.deepcopy(choice.draw(st.sampled_from(reports)))
    name = choice.draw(st.sampled_from(sorted(report)))
    report[name] = choice.draw(
        st.sampled_from([None, 2, 0, -1, True, "", "scale", "differs", [], [[]], {}, report[name]])
    )
    theirs = jsonschema.Draft202012Validator(schema()).is_valid(report)
    assert (faults(report) == []) is theirs


@pytest.mark.slow
def test_every_report_on_the_corpus_keeps_to_the_schema() -> None:
    from benchmarks.confusion import EMBED_DIM, corpus

    for target in corpus():
        report = verify(load(target.words), target.words, embed_dim=EMBED_DIM, heads=target.heads)
        assert faults(data(report)) == [], target.name
