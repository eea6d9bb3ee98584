"""Heads of one document held against its gold pairs."""

import math
import re
from typing import Any

import torch
from torch import Tensor

from headwise.errors import BadValue
from headwise.heads.alignment import Alignment
from headwise.heads.capture import Recorder
from headwise.heads.corpus.blame import called
from headwise.heads.corpus.document import Document
from headwise.heads.models.load import Loaded

MOST_WEIGHTS = 1 << 28
"""How many weights of all heads together are kept for one document."""

ARROW = ">>"
ATOM = re.compile(r"\[(?!(?:PAD|UNK|CLS|SEP|MASK)\]).+|Cl|Br|[BCNOPSFIbcnops]")
"""A token of SMILES that is an atom. Source: the SMILES specification (opensmiles.org)."""


def check_size(document: Document, inputs: dict[str, Tensor], config: Any) -> None:
    """Refuse a document whose weights would not fit in memory.

    Raises:
        BadValue: if all heads together have too many.
    """
    own = inputs.get("decoder_input_ids")
    keys = inputs["input_ids"].shape[1] if "input_ids" in inputs else config.max_source_positions
    queries = keys if own is None else own.shape[1]
    sizes = (getattr(config, name, 1) for name in ("num_hidden_layers", "num_attention_heads"))
    heads = math.prod(sizes)
    if document.alignment and heads * queries * keys > MOST_WEIGHTS:
        raise BadValue(
            "alignment: {heads} heads from {queries} tokens to {keys} are more weights "
            "than the {most_weights} that are kept for one text; give shorter texts",
            heads=heads,
            queries=queries,
            keys=keys,
            most_weights=MOST_WEIGHTS,
        )


def align(
    into: Alignment, document: Document, loaded: Loaded, inputs: dict[str, Tensor], seen: Recorder
) -> None:
    """Hold the heads that look from one side of the gold pairs at the other against them.

    In an encoder-decoder these are those of cross-attention, otherwise all. In a reaction written
    as SMILES the heaviest atom before the arrow is what a head says.

    Raises:
        BadValue: if a pair lies outside of the tokens.
    """
    if not document.alignment:
        return
    cross = any(head.layer.part == "cross" for head in seen.weights)
    weights = {
        head: each[0]
        for head, each in seen.weights.items()
        if head.layer.part == ("cross" if cross else "")
    }
    offered = None
    if "input_ids" in inputs:
        names = loaded.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
        offered = atoms(names)
    with called("alignment", "pairs"):
        into.add(weights, document.alignment, keys=offered)


def atoms(names: list[str]) -> Tensor | None:
    """(Lk,), True for the atoms before the arrow of a reaction; None where there is no arrow.

    Example:
        >>> atoms(["[CLS]", "C", "Cl", "=", "[nH]", ">>", "C", "[SEP]"]).int().tolist()
        [0, 1, 1, 0, 1, 0, 0, 0]
    """
    if ARROW not in names:
        return None
    arrow = names.index(ARROW)
    found = [n < arrow and ATOM.fullmatch(name) is not None for n, name in enumerate(names)]
    return torch.tensor(found)
