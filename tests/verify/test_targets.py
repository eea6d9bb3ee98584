"""Attention modules in usual styles: correct modules are accepted; mistakes are named."""

from pathlib import Path

import pytest
import torch
from torch import nn

import headwise as hw
from headwise.errors import BadFile, BadValue
from headwise.masks import causal, full
from headwise.verify import verify
from headwise.verify.mistakes import MISTAKES
from headwise.verify.target import EXAMPLE, NotRecognised, load

TARGETS = Path(__file__).parent / "targets"
STEP = {mistake.name: mistake.step for mistake in MISTAKES}

RIGHT = {
    "Separate": ("may", full()),
    "Packed": ("blocked", full()),
    "Einsum": ("additive", full()),
    "Heads": (None, causal()),
    "Config": (None, causal()),
    "Listed": ("may", full()),
    "Raw": (None, full()),
    "PerHead": (None, full()),
    "Shifting": (None, full()),
    "function": ("may", full()),
    "adapter": ("may", full()),
}
WRONG = (
    *("no_scale", "scale_by_dim", "scale_by_sqrt_embed", "scale_multiplied"),
    *("query_key_swapped", "softmax_over_queries", "softmax_over_heads", "mask_inverted"),
    *("split_without_transpose", "merge_without_transpose", "heads_interleaved"),
    *("mask_ignored", "mask_after_softmax", "mask_filled_with_zero", "heads_averaged"),
    *("weight_not_transposed", "biases_dropped", "output_missing", "dropout_in_eval"),
    *("weights_detached", "causal_without_self", "causal_one_ahead", "order_k_v_q"),
    "batch_and_length_confused",
)
ALIKE = {"query_key_swapped": {"order_k_q_v"}}
"""What no self-attention can tell apart."""


def target(name: str) -> object:
    for file in ("right.py", "wrong.py"):
        try:
            return load(f"{TARGETS / file}:{name}")
        except BadFile:
            continue
    raise AssertionError(name)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_attention_passes(name: str) -> None:
    report = verify(target(name), name)
    assert [f"{f.check.name}: {f.failed}" for f in report.findings if not f.passed] == []
    assert (report.accepted, report.step, report.mistakes) == (name != "Shifting", None, ())
    encoding, base = RIGHT[name]
    assert report.conventions.base == base
    assert {form.encoding for form in report.conventions.forms} == ({encoding} - {None})


def test_a_mask_that_is_not_understood_is_left_alone_and_said() -> None:
    report = verify(target("Shifting"))
    notes = [note.en for note in report.notes]
    assert "mask: its mask convention was not recognised, so no mask was passed" in notes
    assert not report.accepted


@pytest.mark.parametrize("module", [nn.MultiheadAttention, hw.MultiheadAttention])
def test_the_two_modules_pass(module) -> None:
    report = verify(module, module.__module__)
    assert [f"{f.check.name}: {f.failed}" for f in report.findings if not f.passed] == []
    assert report.accepted
    idle = {finding.check.name for finding in report.findings if not finding.trials}
    assert idle == {"positions", "cache_continues"}  # it has neither
    assert report.conventions.unknown == ()


def test_what_torch_does_otherwise_is_a_note() -> None:
    notes = " ".join(note.en for note in verify(nn.MultiheadAttention).notes)
    assert "NaN" in notes
    assert "weights after dropout" in notes
    assert "NaN" not in " ".join(note.en for note in verify(hw.MultiheadAttention).notes)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_attention_fails_and_its_mistake_is_named(name: str) -> None:
    report = verify(target(name), name)
    assert not report.accepted
    named = [mistake.name for group in report.mistakes for mistake in group]
    assert named[0] == name
    assert set(named[1:]) <= ALIKE.get(name, set())
    assert report.step == STEP[name]


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("no_scale", {"scale"}),
        ("scale_by_dim", {"scale"}),
        ("softmax_over_queries", {"softmax"}),
        ("merge_without_transpose", {"merge"}),
        ("split_without_transpose", {"split"}),
        ("weight_not_transposed", {"project"}),
        ("output_missing", {"output"}),
        ("unknown", {"softmax", "mask"}),
    ],
)
def test_the_step_is_seen_from_inside_alone(name: str, steps: set[str]) -> None:
    from headwise.verify.diagnosis import first_difference, matching_quantities, record
    from headwise.verify.oracle import oracle
    from headwise.verify.oracle.jobs import self_job
    from headwise.verify.target.construction.candidates import runner
    from headwise.verify.target.trials.discovery import find_conventions

    subject = find_conventions(runner(target(name), name, 15, 3), 15, 3, 0).subject(name, 15, 3)
    job = self_job(15, 3)
    seen = record(lambda: subject.module(job))
    appeared = matching_quantities(seen, oracle(job, torch.float32), oracle(job))
    assert first_difference(appeared) in steps


@pytest.mark.parametrize("name", ["unknown", "masked_scores_grow"])
def test_what_is_not_in_the_catalogue_is_not_named(name: str) -> None:
    report = verify(target(name), name)
    assert not report.accepted
    assert report.mistakes == ()


def test_a_function_is_named_too() -> None:
    report = verify(target("no_scale_function"))
    assert [group[0].name for group in report.mistakes] == ["no_scale"]


def test_another_size_and_seed() -> None:
    report = verify(target("scale_by_sqrt_embed"), embed_dim=14, heads=2, seed=7)
    assert [group[0].name for group in report.mistakes] == ["scale_by_sqrt_embed"]


def test_an_instance_keeps_its_heads() -> None:
    assert verify(nn.MultiheadAttention(15, 3, batch_first=True)).accepted
    report = verify(nn.MultiheadAttention(15, 5, batch_first=True))
    assert (report.status, report.heads) == ("accepted", 5)


def test_what_cannot_be_told_apart_asks_for_an_adapter_and_shows_one() -> None:
    report = verify(target("Stranger"))
    why = report.not_compared
    assert report.status == "unproven"
    assert "no parameter is recognised as k, q, v" in str(why)
    assert EXAMPLE in str(why)
    assert EXAMPLE in why.text.zh


class Needy(nn.Module):
    def __init__(self, embed_dim, num_heads, temperament):
        super().__init__()


class Refusing(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        raise RuntimeError("no room")


class Crashing(nn.MultiheadAttention):
    def forward(self, query, key, value):
        raise RuntimeError("bang")


class Leaving(nn.MultiheadAttention):
    def forward(self, query, key, value):
        raise SystemExit(3)


class Shapeless(nn.MultiheadAttention):
    def forward(self, query, key, value):
        return query.sum()


class Narrow(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(embed_dim, 2, bias=False) for _ in range(3))

    def forward(self, x):
        return x


class Barren(Narrow):
    def __init__(self, embed_dim, num_heads):
        super().__init__(embed_dim, num_heads)
        self.q.bias = nn.Parameter(torch.zeros(2))


def two(q, k):
    return q


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (Needy, r"the arguments \(\) of Needy are not recognised"),
        (Refusing, "raises RuntimeError: no room"),
        (Crashing, "raises RuntimeError: bang"),
        (Leaving, "raises SystemExit: 3"),
        (Shapeless, "expected an output of shape"),
        (Narrow, r"the parameter q\.weight has shape \(2, 15\), expected \(15, 15\)"),
        (Barren, "are not one attention's projections"),
        (two, "takes 2 tensors, expected q, k, v"),
        (max, "Python cannot tell the arguments"),
        (int, "neither a torch.nn.Module nor a function"),
    ],
)
def test_what_cannot_be_called_is_one_error(what, said: str) -> None:
    with pytest.raises(NotRecognised, match=said):
        verify(what, getattr(what, "__name__", "target"))


@pytest.mark.parametrize(("embed_dim", "heads"), [(16, 3), (0, 1), (4, 0)])
def test_sizes_that_do_not_divide(embed_dim: int, heads: int) -> None:
    with pytest.raises(BadValue, match="embed_dim: expected a multiple of heads"):
        verify(nn.MultiheadAttention, embed_dim=embed_dim, heads=heads)


def test_what_does_not_load(tmp_path: Path) -> None:
    broken, leaving, fine = (tmp_path / f"{name}.py" for name in ("broken", "leaving", "fine"))
    broken.write_text("def f(:\n")
    leaving.write_text("raise SystemExit(0)\n")
    fine.write_text("number = 3\ndef attention(q, k, v):\n    return v\n")
    cases = (
        (f"{broken}:f", r"broken\.py does not import: SyntaxError"),
        (f"{leaving}:f", r"leaving\.py does not import: SystemExit"),
        (f"{fine}:atention", "has no 'atention'; it has attention"),
        (f"{fine}:number", "is int, expected a class, a function or a module"),
        (f"{tmp_path / 'none.py'}:f", r"none\.py is no Python file"),
        ("torch.nn.Multihead", "torch.nn has no 'Multihead'; it has MultiheadAttention"),
        (
            "no.such.module.Name",
            "no.such.module does not import: there is no module 'no'; install it first: pip",
        ),
        ("word", r"expected path/to/file\.py:Name or package\.Name, got 'word'"),
        ("a b.c", r"expected path/to/file\.py:Name or package\.Name, got 'a b\.c'"),
    )
    for words, said in cases:
        with pytest.raises(BadFile, match=said):
            load(words)


def test_a_file_may_import_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "headwise_neighbour.py").write_text("SCALE = 1\n")
    main = tmp_path / "main_of_mine.py"
    main.write_text("from headwise_neighbour import SCALE\ndef f(q, k, v):\n    return v * SCALE\n")
    assert callable(load(f"{main}:f"))
