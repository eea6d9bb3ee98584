"""The engines pass every check, and each known mistake fails the check assigned to it."""

import re

import pytest
import torch

from headwise.engines import ENGINES, eager
from headwise.errors import BadValue
from headwise.lang import Text
from headwise.verify.checks import of_pipeline
from headwise.verify.checks.mutation_testing import (
    CHECKS,
    CheckResult,
    examine,
    gate,
    mutant,
    self_test,
)
from headwise.verify.mistakes import MISTAKES, Mistake
from headwise.verify.oracle.pipeline import Pipeline
from headwise.verify.oracle.steps import STEPS

BY_NAME = {check.name: check for check in CHECKS}
REQUIRED = 28
"""The last section of the list of real faults."""


LEFT_OUT = {
    "flex": "it compiles for every call and takes no gradient on a CPU; see its own tests",
    "lsh": "it runs LSH masks only, which no case has; see its own tests",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.NAME)
def test_an_engine_passes(engine, dtype: torch.dtype) -> None:
    if engine.NAME in LEFT_OUT:
        pytest.skip(LEFT_OUT[engine.NAME])
    findings = gate(engine.NAME, engine.run, engine.why_not, dtype)
    assert [f"{f.check.name}: {f.failed}" for f in findings if not f.passed] == []
    tried = {finding.check.name for finding in findings if finding.trials}
    assert {"forward", "gradients", "blind_rows_zero", "padding_nan"} <= tried


def test_eager_is_tried_by_every_property() -> None:
    assert all(finding.trials for finding in gate("eager", eager.run, eager.why_not))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_right_pipeline_passes(check) -> None:
    finding = examine(check, of_pipeline("right", Pipeline()), torch.float32)
    assert (finding.failed, finding.trials > 0) == ("", True)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mutant_is_rejected_by_the_check_that_names_it(mistake: Mistake) -> None:
    finding = examine(BY_NAME[mistake.check], mutant(mistake), torch.float32)
    assert not finding.passed
    assert not finding.raised, finding.failed


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_says_what_a_person_needs(mistake: Mistake) -> None:
    assert re.fullmatch("[a-z_]+", mistake.name)
    assert mistake.step in STEPS
    assert set(mistake.replacement) <= set(STEPS)
    assert mistake.wrong != mistake.right
    assert mistake.says.en.endswith(".")
    assert mistake.says.zh.endswith("。")


def test_the_catalogue_is_large_enough_and_has_no_name_twice() -> None:
    names = {mistake.name for mistake in MISTAKES}
    assert len(names) == len(MISTAKES) >= REQUIRED


def test_no_check_is_idle() -> None:
    tested = self_test()
    assert (tested.passed, tested.survivors, tested.idle, tested.false_alarms) == (True, (), (), ())


def test_a_mutant_that_is_no_mutant_survives() -> None:
    harmless = Mistake("harmless", "mix", Text(""), "", "", "one_key_copies", {})
    tested = self_test((harmless,))
    assert tested.survivors == (harmless,)
    assert set(tested.idle) == set(CHECKS)
    assert not tested.passed


def test_a_mistake_that_names_no_check() -> None:
    lost = Mistake("lost", "mix", Text(""), "", "", "nowhere", {})
    with pytest.raises(BadValue, match="check: unknown 'nowhere'"):
        self_test((lost,))


def test_a_subject_that_raises_is_a_failure_and_says_what() -> None:
    def run(call):
        raise RuntimeError("no  kernel")

    findings = gate("broken", run, lambda _call: [])
    assert {finding.failed for finding in findings} == {"RuntimeError: no kernel"}
    assert all(finding.raised for finding in findings)


def test_what_a_subject_refuses_is_not_tried() -> None:
    def run(call):
        raise AssertionError("must not be called")

    findings = gate("shy", run, lambda _call: [Text("no")])
    assert all(isinstance(f, CheckResult) and f.passed and not f.trials for f in findings)
