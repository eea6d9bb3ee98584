"""A norm or a residual in the attention module is excluded from the comparison and reported."""

from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.verify import verify
from headwise.verify.target import load
from headwise.verify.target.parameters.locate import bypassed, norms

AROUND = Path(__file__).parent / "targets" / "corpus" / "around.py"


def report_of(name: str):
    return verify(load(f"{AROUND}:{name}"), f"{AROUND}:{name}", embed_dim=12, heads=3)


@pytest.mark.parametrize(
    ("name", "norm", "added"),
    [("PostNorm", "layer_norm", True), ("PreNorm", "norm", True), ("NormAlone", "norm", False)],
)
def test_what_stands_around_is_told(name: str, norm: str, added: bool) -> None:
    report = report_of(name)
    assert report.accepted
    said = [note.en for note in report.notes]
    assert f"{norm}: bypassed, not verified" in said
    taken = "it adds its input to its output: subtracted before the comparison"
    assert (taken in said) is added


@pytest.mark.parametrize("name", ["PostNormNoScale", "PreNormPair"])
def test_the_snippet_sets_it_aside_too(name: str, capsys) -> None:
    code = report_of(name).smallest["module_forward"]
    assert "norm.register_forward_hook(" in code
    exec(code, {})  # noqa: S102 - what a person would paste
    assert capsys.readouterr().out


def test_norms_are_found_set_aside_and_put_back() -> None:
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.q_norm = nn.LayerNorm(3), nn.LayerNorm(3)
            self.lin = nn.Linear(3, 3)

        def forward(self, x):
            return self.norm1(x)

    layer, x = Layer(), torch.tensor([[1.0, 2.0, 6.0]])
    assert norms(layer) == ("norm1",)
    before = layer(x)
    with bypassed(layer, ("norm1",)):
        assert torch.equal(layer(x), x)
    assert torch.equal(layer(x), before)
