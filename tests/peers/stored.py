"""The results stored by `tests.peers.record`, and their comparison with headwise."""

from collections.abc import Callable, Iterable

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from headwise.verify.oracle.tolerance import Verdict, accept, judge
from tests.peers.record import DTYPES, FOLDER

Ours = Callable[[Tensor, dict[str, Tensor]], Tensor]
"""The same attention here: of x and the module's parameters by their names."""


def stored(name: str) -> dict[str, Tensor]:
    """Every tensor of a file."""
    return load_file(FOLDER / f"{name}.safetensors")


def accept_again(found: dict[str, Tensor], known: dict[str, Tensor]) -> None:
    """Assert that a new run of the other project gives what is stored, input and all."""
    measured = {n for n in known if n.endswith(tuple(DTYPES))}
    assert found.keys() == known.keys()
    for name in known.keys() - measured:
        assert torch.equal(found[name], known[name]), name
    if measured:
        results = [
            ["output"],
            *([f"grad.{_bare(n)}" for n in g] for g in _together(_leaves(known))),
        ]
        for names in results:
            plain, oracle = (_joined(known[f"{n}.{tag}"] for n in names) for tag in DTYPES)
            for tag in DTYPES:
                accept(_joined(found[f"{n}.{tag}"] for n in names), plain, oracle)


def accept_all(known: dict[str, Tensor], ours: Ours) -> None:
    """Assert that output and every gradient are accepted: N and O are the peer's own runs."""
    leaves = {n: nn.Parameter(known[n]) for n in _leaves(known)}
    output = ours(leaves["x"], {_bare(n): leaves[n] for n in leaves if n != "x"})
    accept(output, known["output.float32"], known["output.float64"])
    found = torch.autograd.grad(output, list(leaves.values()), known["seed"])
    gradients = dict(zip(leaves, found, strict=True))
    for names in _together(leaves):
        stored = (_joined(known[f"grad.{_bare(n)}.{tag}"] for n in names) for tag in DTYPES)
        accept(_joined(gradients[n] for n in names), *stored)


def judged(known: dict[str, Tensor], ours: Ours) -> Verdict:
    """What the rule says of an output alone."""
    output = ours(known["x"], {_bare(n): known[n] for n in _leaves(known) if n != "x"})
    return judge(output, known["output.float32"], known["output.float64"])


def _leaves(known: Iterable[str]) -> list[str]:
    return [name for name in known if name == "x" or name.startswith("param.")]


def _bare(name: str) -> str:
    return name.removeprefix("param.")


def _together(names: Iterable[str]) -> list[list[str]]:
    """Weight and bias of a projection: the gradient of a bias of keys is rounding errors only."""
    heads = dict.fromkeys(n.removesuffix(".weight").removesuffix(".bias") for n in names)
    return [[n for n in names if n in (h, f"{h}.weight", f"{h}.bias")] for h in heads]


def _joined(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])
