"""Draw ``docs/overview.png``, the picture at the top of the README: ``python -m docs.overview``.

The four panels are computed: the weights of one head, the error of two attentions, a mask, and a
head of a trained model (``headwise models get minilm``).
"""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import headwise as hw
from headwise.call import Call
from headwise.explain.trace import trace
from headwise.heads.inspection import inspect
from headwise.heads.models.load import load
from headwise.reference import reference

PICTURE = Path(__file__).parent / "overview.png"
SENTENCE = "The dog that chased the cats was tired."
MAP = "YlGnBu"


def main() -> None:
    """Draw the four panels and write the file."""
    figure = Figure(figsize=(12, 3.4), layout="constrained", facecolor="white")
    read, prove, run, see = figure.subplots(1, 4)
    _read(read)
    _prove(prove)
    _run(run)
    _see(see)
    figure.savefig(PICTURE, dpi=110)


def _read(axes: Axes) -> None:
    """Draw the attention weights of one head, as in ``headwise explain``."""
    tokens = ("I", "love", "you")
    x = torch.tensor([[0.5, 1.1, 0.2, 0.1], [1.0, 1.1, 0.3, 0.2], [1.2, -0.2, 0.1, 0.4]])
    weights = trace(x, 2, tokens=tokens).get("softmax", 1)
    axes.imshow(weights, cmap=MAP, vmin=0, vmax=1)
    for i, row in enumerate(weights.tolist()):
        for j, weight in enumerate(row):
            axes.text(j, i, f"{weight:.3f}", ha="center", va="center")
    axes.set_xticks(range(3), tokens)
    axes.set_yticks(range(3), tokens)
    axes.set_title("read: every number\nheadwise explain")


def _prove(axes: Axes) -> None:
    """Draw the largest error of an attention and of an attention without the scale."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, 32, 16).unbind()
    exact = reference(Call.of(q.double(), k.double(), v.double())).output
    results = {"correct": hw.attend(q, k, v), "no 1/sqrt(d)": hw.attend(q, k, v, scale=1.0)}
    errors = [(result - exact).abs().max().item() for result in results.values()]
    axes.bar(list(results), errors, color=("#009e73", "#d55e00"), width=0.6)
    axes.set_yscale("log")
    axes.set_ylim(1e-8, 10)
    axes.set_ylabel("largest error (float32)")
    axes.set_title("prove: against a float64 oracle\nheadwise verify")


def _run(axes: Axes) -> None:
    """Draw the allowed pairs of a mask, as in ``headwise show``."""
    mask = hw.causal() & (hw.window(3, 0) | hw.global_tokens([0]))
    allowed = [[mark == "■" for mark in line.split()] for line in mask.draw(16).splitlines()]
    axes.imshow(allowed, cmap=MAP, vmin=0, vmax=1.4)
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    axes.set_title("run: masks and positions\nheadwise.attend")


def _see(axes: Axes) -> None:
    """Draw the weights of the head that attends most to the previous token."""
    seen = inspect(load("minilm", print), SENTENCE)
    head, weights = max(seen.maps.items(), key=lambda item: _previous(item[1]))
    tokens = seen.sides(head)[0]
    axes.imshow(weights, cmap=MAP, vmin=0, vmax=1)
    axes.set_xticks(range(len(tokens)), tokens, rotation=90)
    axes.set_yticks(range(len(tokens)), tokens)
    axes.set_title(f"see: heads of a real model\nheadwise inspect ({head})")


def _previous(weights: torch.Tensor) -> float:
    return weights.diagonal(-1).nan_to_num(0.0).mean().item()


if __name__ == "__main__":
    main()
