"""A tokenizer for molecules written as SMILES, made from a vocabulary with one symbol a line."""

import json
from pathlib import Path

SYMBOL = r"\[[^\]]+\]|%\d\d|Cl|Br|>>|."
"""One symbol: an atom in brackets, a ring number of two digits, chlorine, bromine, the arrow of a
reaction, or a single character. Source: the SMILES specification (opensmiles.org)."""

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_tokenizer(folder: Path) -> None:
    """Write ``tokenizer.json`` and its settings beside the ``vocab.txt`` in the folder."""
    symbols = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    numbers = {symbol: number for number, symbol in enumerate(symbols)}
    (folder / "tokenizer.json").write_text(json.dumps(_smiles_tokenizer(numbers)), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _smiles_tokenizer(numbers: dict[str, int]) -> dict[str, object]:
    """The tokenizer in the format of the `tokenizers` library, version 1.0."""
    whole = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}

    def token(symbol: str) -> dict[str, object]:
        return {"SpecialToken": {"id": symbol, "type_id": 0}}

    def sequence(letter: str) -> dict[str, object]:
        return {"Sequence": {"id": letter, "type_id": 0}}

    single = [token("[CLS]"), sequence("A"), token("[SEP]")]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": numbers[symbol], "content": symbol, "special": True, **whole}
            for symbol in SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": SYMBOL},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, sequence("B"), token("[SEP]")],
            "special_tokens": {
                symbol: {"id": symbol, "ids": [numbers[symbol]], "tokens": [symbol]}
                for symbol in ("[CLS]", "[SEP]")
            },
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": numbers, "unk_token": "[UNK]"},
    }
