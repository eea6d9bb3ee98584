"""The corpus of targets: correct targets are accepted; mistakes of wrong targets are named."""

from pathlib import Path

import pytest

from benchmarks.confusion import EMBED_DIM, HEADS, Target, check_target, corpus, figures
from headwise.verify.mistakes import MISTAKES, combine

CORPUS = tuple(corpus())
KNOWN = {mistake.name: mistake for mistake in MISTAKES}


def marked(target: Target) -> object:
    """The functions, which are quick to try, are tried always; everything in the slow tests."""
    fast = Path(target.words).parent.name == "corpus" and target.words.rpartition(":")[2].islower()
    return pytest.param(target, id=target.name, marks=[] if fast else [pytest.mark.slow])


@pytest.mark.parametrize("target", [marked(target) for target in CORPUS])
def test_a_target_is_judged_and_its_mistakes_are_named(target: Target) -> None:
    told = check_target(target)
    assert told.accepted == target.right
    assert told.named_right, [sorted(group) for group in told.named]


def test_the_corpus_is_large_enough() -> None:
    right = [target for target in CORPUS if target.right]
    assert len(right) >= 20
    assert len(CORPUS) - len(right) >= 40
    assert sum(len(target.mistakes) == 2 for target in CORPUS) >= 15
    assert EMBED_DIM % HEADS == 0


def test_every_mistake_in_the_corpus_is_in_the_catalogue() -> None:
    assert {name for target in CORPUS for name in target.mistakes} <= set(KNOWN)


def test_the_figures_tell_the_kinds_apart() -> None:
    from benchmarks.confusion import TargetResult

    right, wrong = Target("a.py:a", (), True), Target("a.py:b", ("no_scale",), False)
    named, other = (frozenset({"no_scale"}),), (frozenset({"scale_by_dim"}),)
    told = [
        TargetResult(right, True, (), 0.0),
        TargetResult(right, False, (), 0.0),
        TargetResult(wrong, False, named, 0.0),
        TargetResult(wrong, False, other, 0.0),
        TargetResult(wrong, False, (), 0.0),
        TargetResult(wrong, True, (), 0.0),
    ]
    assert list(figures(told).values()) == [2, 1, 1, 4, 3, 1, 1, 2]


def test_mistakes_of_one_step_exclude_each_other() -> None:
    pair = (KNOWN["no_scale"], KNOWN["scale_by_dim"])
    assert list(combine(pair)) == []
    weights = (KNOWN["weight_not_transposed"], KNOWN["biases_dropped"])
    assert [set(way) for way in combine(weights)] == [{"project"}]


def test_the_mistake_that_stands_in_a_step_has_its_way() -> None:
    softmax, ignored = KNOWN["softmax_over_queries"], KNOWN["mask_ignored"]
    for pair in ((softmax, ignored), (ignored, softmax)):
        (way,) = combine(pair)
        assert way["softmax"] is softmax.replacement["softmax"]
        assert way["mask"] is ignored.replacement["mask"]


def test_a_pair_is_said_to_be_one_and_what_is_unknown_was_tried_in_pairs() -> None:
    from headwise.document import Paragraph
    from headwise.verify import verify
    from headwise.verify.report import data
    from headwise.verify.report.report_document import document
    from headwise.verify.target import load

    said = {}
    for name in ("rows_and_scale", "minus_instead"):
        (target,) = (t for t in CORPUS if t.name.endswith(f":{name}"))
        blocks = document(data(verify(load(target.words)))).blocks
        said[name] = " ".join(b.text.en for b in blocks if isinstance(b, Paragraph))
    assert "Together, these mistakes give exactly this output" in said["rows_and_scale"]
    assert "known mistakes, alone or in pairs, gives this output" in said["minus_instead"]
