"""The identity of a run: a checkpoint is resumed only by a run with the same identity."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import headwise
from headwise.document.text_format import clean
from headwise.errors import BadFile
from headwise.heads.corpus.measurement import Measurer
from headwise.heads.corpus.readers import Corpus
from headwise.heads.metrics import MEASURED
from headwise.heads.models.load import Loaded
from headwise.lang import Text, joined

PARTS = {
    "headwise": Text("the version of headwise"),
    "torch": Text("the version of torch"),
    "model": Text("the model"),
    "tokenizer": Text("the tokenizer"),
    "corpus": Text("the corpus"),
    "paragraphs": Text("--paragraphs"),
    "truncate": Text("--truncate"),
    "names": Text("--no-names"),
    "metrics": Text("the metrics"),
    "processes": Text("the number of processes"),
}
"""The parts of an identity, with their names in messages."""


def identity(measurer: Measurer, corpus: Corpus, processes: int) -> dict[str, Any]:
    """Everything that the numbers of a run depend on."""
    loaded = measurer.loaded
    return {
        "headwise": headwise.__version__,
        "torch": str(torch.__version__),
        "model": _of_model(loaded),
        "tokenizer": _of_tokenizer(loaded.tokenizer),
        "corpus": corpus.sha256,
        "paragraphs": corpus.paragraphs,
        "truncate": measurer.truncate,
        "names": measurer.random is not None,
        "metrics": [metric.name for metric in MEASURED],
        "processes": processes,
    }


def check_same(folder: Path, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Check that two runs have the same identity.

    Args:
        folder: the folder of the earlier run.
        wanted: the identity of the new run.
        found: the identity of the earlier run.

    Raises:
        BadFile: if they differ.
    """
    different = [key for key in PARTS if wanted.get(key) != found.get(key)]
    if different:
        name = clean(str(folder))
        raise BadFile(
            "save: {name} holds another run, which differs in {parts}; choose another folder, or "
            "give the same again",
            name=name,
            parts=joined(Text(", "), [PARTS[key] for key in different]),
        )


def _of_model(loaded: Loaded) -> str:
    """A hash of the weights and of the configuration without its paths.

    The pooler is excluded: it follows all attention, and is random in a checkpoint without one.
    """
    digest = hashlib.sha256()
    config = {k: v for k, v in loaded.config.to_dict().items() if not k.startswith("_")}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in loaded.model.state_dict().items():
        if "pooler" in name:
            continue
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _of_tokenizer(tokenizer: Any) -> str:
    fast = getattr(tokenizer, "backend_tokenizer", None)
    text = json.dumps(tokenizer.get_vocab(), sort_keys=True) if fast is None else fast.to_str()
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
