"""Projections with unknown names are identified by the change of the output."""

from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.verify import verify
from headwise.verify.oracle.jobs import self_job
from headwise.verify.target import load
from headwise.verify.target.construction.candidates import runner
from headwise.verify.target.module_runner import ModuleRunner
from headwise.verify.target.parameters.parameter_probe import probe

UNNAMED = Path(__file__).parent / "targets" / "corpus" / "unnamed.py"
E, H = 12, 3


def read(name: str) -> ModuleRunner:
    found = runner(load(f"{UNNAMED}:{name}"), name, E, H)
    assert isinstance(found, ModuleRunner)
    return found


def matches_oracle(found: ModuleRunner, number: int) -> dict[str, str]:
    """For each group of weights the parameter that holds it, in one of the readings."""
    binding = (found.binding, *found.others)[number]
    return {" ".join(names): places[0].name for names, places in binding.places.items()}


def test_the_two_readings_differ_in_which_is_the_query() -> None:
    found = read("Greek")
    assert len(found.others) == 1
    one, other = matches_oracle(found, 0), matches_oracle(found, 1)
    assert (one["v"], one["out"]) == ("gamma.weight", "omega.weight") == (other["v"], other["out"])
    assert {one["q"], one["k"]} == {"alpha.weight", "beta.weight"}
    assert (one["q"], one["k"]) == (other["k"], other["q"])
    assert one["q_bias"].split(".")[0] == one["q"].split(".")[0]


def test_raw_biases_are_told_apart_by_what_they_move() -> None:
    one = matches_oracle(read("Letters"), 0)
    assert (one["v"], one["v_bias"]) == ("a1", "a0")
    assert (one["out"], one["out_bias"]) == ("d1", "d0")
    assert {one["q_bias"], one["k_bias"]} == {"b0", "c0"}


def test_parts_of_one_matrix_have_their_order() -> None:
    orders = {names for number in (0, 1) for names in matches_oracle(read("OneMatrix"), number)}
    assert {"v k q", "v q k"} <= orders


def test_no_output_projection_and_fewer_keys_are_seen() -> None:
    assert "out" in read("NoBiases").lacks
    assert read("FewKeys").groups == 1


@pytest.mark.parametrize("name", ["Greek", "Letters", "OneMatrix", "ListOfHeads", "FewKeys"])
def test_a_right_one_is_accepted_in_its_right_reading(name: str) -> None:
    report = verify(load(f"{UNNAMED}:{name}"), name, embed_dim=E, heads=H)
    assert report.accepted
    said = [note.en for note in report.notes if note.en.startswith("its parameter names")]
    assert len(said) == 1


def test_the_note_says_what_was_taken_for_what() -> None:
    report = verify(load(f"{UNNAMED}:Greek"), "Greek", embed_dim=E, heads=H)
    (said,) = [n for n in report.notes if n.en.startswith("its parameter names are not recognised")]
    assert "q: beta.weight, k: alpha.weight, v: gamma.weight, out: omega.weight" in said.en
    assert "参数名" in said.zh


@pytest.mark.parametrize(
    ("name", "mistakes"),
    [
        ("GreekNoScale", {"no_scale"}),
        ("GreekPair", {"scale_by_sqrt_embed", "split_without_transpose"}),
        ("LettersOverQueries", {"softmax_over_queries"}),
        ("OneMatrixPair", {"no_scale", "merge_without_transpose"}),
    ],
)
def test_a_wrong_one_has_its_mistakes_named(name: str, mistakes: set[str]) -> None:
    report = verify(load(f"{UNNAMED}:{name}"), name, embed_dim=E, heads=H)
    assert not report.accepted
    assert mistakes in [{mistake.name for mistake in group} for group in report.mistakes]


@pytest.mark.parametrize("count", [2, 5])
def test_other_numbers_of_projections_are_no_attention(count: int) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.ModuleList(nn.Linear(E, E) for _ in range(count))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for one in self.each:
                x = one(x).tanh()
            return x

    job, module = self_job(E, H), Sum()

    def give(given):
        return torch.func.functional_call(module, dict(given), (job.query,))

    assert probe(module, give, job.weights, H) == ()


def test_a_module_that_cannot_be_called_has_no_reading() -> None:
    def give(given):
        raise RuntimeError("no")

    job = self_job(E, H)
    assert probe(load(f"{UNNAMED}:Greek")(E, H), give, job.weights, H) == ()
