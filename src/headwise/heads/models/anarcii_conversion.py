"""ANARCII's files as they are kept: a configuration, weights and two tokenizers."""

import json
from pathlib import Path

from headwise.errors import BadFile, MissingExtra

NAME = "antibody_4_2_128_512"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "numbers.json")
"""What `convert` leaves in the folder."""

SPECIAL = ("<PAD>", "<SOS>", "<EOS>", "<SKIP>")
RESIDUES = (*SPECIAL, *"ACDEFGHIKLMNPQRSTVWXY")
"""What the encoder reads, in the order of its embedding; X is a residue that is not known."""

NUMBERS = (*SPECIAL, *(str(n) for n in range(1, 129)), "X", "H", "L", "K")
"""What the decoder reads and writes: IMGT numbers, X for an insertion, and the kind of chain."""


def convert(folder: Path) -> None:
    """Put safetensors and tokenizers in place of the pickle, of which only tensors are read.

    Raises:
        BadFile: if it does not hold a dictionary of tensors.
        MissingExtra: if safetensors is not installed.
    """
    import torch

    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtra.of("safetensors", "inspect") from error
    pickled = folder / f"{NAME}.pt"
    weights = torch.load(pickled, map_location="cpu", weights_only=True)
    tensors = weights.values() if isinstance(weights, dict) else [None]
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise BadFile(
            "model: {pickled_name}: expected a dictionary of tensors; get it again",
            pickled_name=pickled.name,
        )
    save_file({k: w.contiguous() for k, w in weights.items()}, folder / "model.safetensors")
    (folder / f"{NAME}.json").replace(folder / "config.json")
    for name, words in (("tokenizer", RESIDUES), ("numbers", NUMBERS)):
        text = json.dumps(_tokenizer(words), ensure_ascii=False)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    pickled.unlink()


def _tokenizer(words: tuple[str, ...]) -> dict[str, object]:
    """In the format of the `tokenizers` library, version 1.0: a residue, or a word, a token."""
    numbers = {word: number for number, word in enumerate(words)}
    whole = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    letters = words is RESIDUES
    single: list[object] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if letters:
        start, end = ({"SpecialToken": {"id": word, "type_id": 0}} for word in ("<SOS>", "<EOS>"))
        single = [start, *single, end]
    pattern = {"Regex": "."} if letters else {"String": " "}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": numbers[word], "content": word, "special": True, **whole} for word in SPECIAL
        ],
        "normalizer": {"type": "Replace", "pattern": {"Regex": r"\s"}, "content": ""}
        if letters
        else None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": pattern,
            "behavior": "Isolated" if letters else "Removed",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {
                word: {"id": word, "ids": [numbers[word]], "tokens": [word]}
                for word in ("<SOS>", "<EOS>")
            },
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": numbers, "unk_token": "X"},
    }
