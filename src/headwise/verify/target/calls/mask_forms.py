"""The forms in which a target may take its mask: axes, and what its values mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.shapes import Allowed
from headwise.verify.target.stated import MaskTrue

ADDED = ("attention_bias", "attn_bias", "score_bias", "position_bias", "relative_position_bias")
LENGTHS = (
    *("valid_lens", "valid_len", "valid_length", "valid_lengths", "lengths", "lens", "seq_lens"),
    *("seq_lengths", "key_lengths", "key_lens", "src_lengths", "src_lens", "sequence_lengths"),
)

# fmt: off
Encoding = Literal["may", "blocked", "additive", "ones", "zeros", "ones_int", "zeros_int",
                   "ones_byte", "zeros_byte", "lengths"]
# fmt: on
ENCODINGS: tuple[Encoding, ...] = (
    *("may", "blocked", "additive", "ones", "zeros", "ones_int", "zeros_int", "ones_byte"),
    "zeros_byte",
)
"""Booleans that are True where a query may attend, or where it may not; floats that are added;
floats, integers or bytes that are 1 where it may attend, or where it may not. Arguments of lengths
take "lengths", the number of real keys of each sample."""

ATTEND: tuple[Encoding, ...] = ("may", "ones", "ones_int", "ones_byte")
BLOCKED: tuple[Encoding, ...] = ("blocked", "zeros", "zeros_int", "zeros_byte")

SHAPES = (
    *("q k", "b 1 q k", "b q k", "1 q k", "1 1 q k", "b h q k", "h q k", "bh q k"),
    *("b k", "b 1 1 k", "b 1 k", "k b", "q k b", "q k 1", "1 k b"),
)
"""Axes: b batch, h heads, q queries, k keys; "bh" is both in one, samples first."""


@dataclass(frozen=True)
class MaskForm:
    """The form of a mask: its argument, its axes, and what its values mean.

    Attributes:
        argument: the name of the argument.
        shape: the axes, as in `SHAPES`.
        encoding: what its values mean.
        hides_queries: whether a padding mask hides the padded queries as well as the keys.
    """

    argument: str
    shape: str
    encoding: Encoding
    hides_queries: bool = False

    def encode(self, allowed: Allowed) -> Tensor | None:
        """The mask (B, H, Lq, Lk) in this form, or None where the form cannot say it."""
        if self.encoding == "lengths":
            return lengths_of(allowed)
        shaped = _shaped(allowed, self.shape)
        if shaped is None or self.encoding == "may":
            return shaped
        if self.encoding == "blocked":
            return ~shaped
        if self.encoding == "additive":
            return torch.zeros(shaped.shape).masked_fill(~shaped, -torch.inf)
        shaped = shaped if self.encoding in ATTEND else ~shaped
        kind = self.encoding.rpartition("_")[2]
        dtypes = {"int": torch.int64, "byte": torch.uint8}
        return shaped.to(dtypes.get(kind, torch.float32))


def fits_statement(form: MaskForm, mask_true: MaskTrue | None) -> bool:
    """Whether a form agrees with what a person stated of True; floats that are added do."""
    against = {"attend": BLOCKED, "blocked": ATTEND, None: ()}[mask_true]
    return form.encoding not in against


def lengths_of(allowed: Allowed) -> Tensor | None:
    """How many keys of each sample are real, (B,), or None where the mask says something else."""
    shaped = _shaped(allowed, "b k")
    if shaped is None:
        return None
    lengths = shaped.sum(-1)
    first = torch.arange(shaped.shape[1]) < lengths[:, None]
    return lengths if bool((first == shaped).all()) else None


def pads(argument: str) -> bool:
    """Whether the name of an argument says which keys of a sample are real, and nothing else."""
    name = argument.lower()
    return "padding" in name or name in LENGTHS or name.rstrip("s") in ("pad", "pad_mask")


def _shaped(allowed: Allowed, shape: str) -> Tensor | None:
    """The mask with only the axes of a shape, in its order; None where it varies along others."""
    axes = shape.replace("bh", "b h").split()
    for axis, letter in enumerate("bhqk"):
        if letter not in axes:
            first = allowed.narrow(axis, 0, 1)
            if not bool((allowed == first).all()):
                return None
            allowed = first
    letters = [letter for letter in axes if letter != "1"]
    present = [axis for axis, letter in enumerate("bhqk") if letter in letters]
    flat = allowed.reshape([allowed.shape[axis] for axis in present])
    flat = flat.permute([["bhqk"[axis] for axis in present].index(letter) for letter in letters])
    sizes = dict(zip(letters, flat.shape, strict=True))
    whole = flat.reshape([sizes.get(letter, 1) for letter in axes])
    return whole.flatten(0, 1) if "bh" in shape else whole


def forms_for(masks: Sequence[str]) -> tuple[MaskForm, ...]:
    """Every form that the masks of these arguments could have, the likely ones first.

    What is called lengths takes (B,), and what is called a bias is added; PyTorch's own names mean
    True = blocked.
    """
    forms: list[MaskForm] = []
    for argument in masks:
        name = argument.lower()
        if name in LENGTHS:
            forms.append(MaskForm(argument, "b", "lengths"))
            continue
        encodings: tuple[Encoding, ...] = ("additive",) if name in ADDED else ENCODINGS
        first = tuple(shape for shape in SHAPES if pads(argument) == ("q" not in shape))
        shapes = (*first, *(shape for shape in SHAPES if shape not in first))
        forms += [MaskForm(argument, shape, code) for code in encodings for shape in shapes]
        forms += [MaskForm(argument, "b", "lengths")]
    pytorch = ("attn_mask", "key_padding_mask")
    return tuple(sorted(forms, key=lambda f: f.argument in pytorch and f.encoding == "may"))
