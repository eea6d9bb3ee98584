"""The head of RXNMapper that maps atoms: published confidences, reproduced from captured weights.

The weights of layer 10, head 5 assign each atom of a product to an atom of the reactants. The
published algorithm maps the atom with the highest weight first and then raises the weights of its
neighbours; the confidence of a reaction is the product of the confidences of its atoms.

Source: Schwaller et al. 2021; the numbers are from the tests of their package.
"""

import pytest
import torch
from torch import Tensor

from headwise.heads.capture import capture
from headwise.heads.models import is_cached, model_named
from headwise.heads.models.load import Loaded, load
from headwise.heads.names import Head

HEAD = Head.parse("L10H5")
NEIGHBOURS = 90.0
BONDS = frozenset("-=#:/\\~")


def molecules(symbols: list[str]) -> tuple[list[int], Tensor]:
    """Where the atoms of SMILES stand, and which are bonded: (atoms, atoms) of booleans."""
    atoms: list[int] = []
    pairs: list[tuple[int, int]] = []
    branches: list[int | None] = []
    rings: dict[str, int] = {}
    last: int | None = None
    for place, symbol in enumerate(symbols):
        if symbol == ".":
            last = None
        elif symbol == "(":
            branches.append(last)
        elif symbol == ")":
            last = branches.pop()
        elif symbol.isdigit() or symbol.startswith("%"):
            assert last is not None
            if symbol in rings:
                pairs.append((rings.pop(symbol), last))
            else:
                rings[symbol] = last
        elif symbol not in BONDS:
            if last is not None:
                pairs.append((last, len(atoms)))
            last = len(atoms)
            atoms.append(place)
    bonded = torch.zeros(len(atoms), len(atoms), dtype=torch.bool)
    for one, other in pairs:
        bonded[one, other] = bonded[other, one] = True
    return atoms, bonded


def test_bonds_of_a_ring_with_a_branch() -> None:
    atoms, bonded = molecules(list("C1(=O)CN1.C"))
    assert atoms == [0, 4, 6, 7, 10]
    assert bonded.nonzero().tolist() == [
        [0, 1], [0, 2], [0, 3], [1, 0], [2, 0], [2, 3], [3, 0], [3, 2],
    ]  # fmt: skip


def confidence(both: Tensor, product: Tensor, reactants: Tensor) -> float:
    """The product over atoms, each taken where the rows that are left are surest.

    Args:
        both: (product's atoms, reactants' atoms), 0 between different elements.
        product, reactants: which atoms of each are bonded.
    """
    raised, found = torch.ones_like(both), 1.0
    for _ in range(len(both)):
        rows = both * raised
        rows = rows / rows.sum(1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
        atom, origin = divmod(int(rows.argmax()), rows.shape[1])
        found *= rows[atom, origin].item()
        near = torch.outer(product[atom], reactants[origin])
        raised = torch.where(near, raised * NEIGHBOURS, raised)
        raised[atom] = 0.0
        raised[:, origin] = 0.0
    return found


@pytest.fixture(scope="module")
def rxnmapper() -> Loaded:
    if not is_cached(model_named("rxnmapper")):
        pytest.skip("rxnmapper is not in the cache; headwise models get rxnmapper")
    return load("rxnmapper")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reaction", "published"),
    [
        ("CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F", 0.9565619900376546),
        (
            "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
            0.9704424331552834,
        ),
        (
            (
                "C=CCN=C=S.CNCc1ccc(C#N)cc1.NNC(=O)c1cn2c(n1)CCCC2>>"
                "C=CCn1c(-c2cn3c(n2)CCCC3)nnc1N(C)Cc1ccc(C#N)cc1"
            ),
            0.919023506871605,
        ),
        ("C(C)O.BrC(C)>>CCOCC", 0.9754605679009868),
    ],
)
def test_published_confidences_to_a_millionth(
    rxnmapper: Loaded, reaction: str, published: float
) -> None:
    inputs = rxnmapper.tokenizer(reaction, return_tensors="pt")
    symbols = rxnmapper.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
    with capture(rxnmapper.model, heads=[HEAD]) as seen, torch.no_grad():
        rxnmapper.model(**inputs)
    arrow = symbols.index(">>")
    left, reactants = molecules(symbols[1:arrow])
    right, product = molecules(symbols[arrow + 1 : -1])
    origins, atoms = [1 + at for at in left], [arrow + 1 + at for at in right]
    weights = seen.weights[HEAD][0].double()
    both = weights[atoms][:, origins] + weights[origins][:, atoms].T
    alike = [[symbols[a].lower() == symbols[o].lower() for o in origins] for a in atoms]
    found = confidence(both * torch.tensor(alike), product, reactants)
    assert f"{found:.6f}" == f"{published:.6f}"
