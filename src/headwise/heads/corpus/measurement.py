"""Measure the heads of a model on one document, and identify what a run depends on."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import headwise
from headwise.document.text_format import clean
from headwise.errors import BadFile, BadValue, HeadwiseError
from headwise.heads.analysis.alignment import Alignment
from headwise.heads.capture import Recorder, capture
from headwise.heads.corpus.accumulated import Half
from headwise.heads.corpus.checkpoint import error_context
from headwise.heads.corpus.documents import CorpusDocument
from headwise.heads.corpus.readers import Corpus
from headwise.heads.metrics import MEASURED
from headwise.heads.model_inputs import check_length, encode, length, run, separators
from headwise.heads.models.load import Loaded
from headwise.heads.models.whisper import takes_sound
from headwise.heads.naming import random_copy, take
from headwise.heads.naming.assignment import compared, punctuation
from headwise.lang import Text, joined

MOST_WEIGHTS = 1 << 28  # the most attention weights of all heads that are stored for a document
ARROW = ">>"
ATOM = re.compile(r"\[(?!(?:PAD|UNK|CLS|SEP|MASK)\]).+|Cl|Br|[BCNOPSFIbcnops]")
"""A token of SMILES that is an atom. Source: the SMILES specification (opensmiles.org)."""


def check_size(document: CorpusDocument, inputs: dict[str, Tensor], config: Any) -> None:
    """Raise `BadValue` if the attention weights of an aligned document do not fit in memory."""
    own = inputs.get("decoder_input_ids")
    keys = inputs["input_ids"].shape[1] if "input_ids" in inputs else config.max_source_positions
    queries = keys if own is None else own.shape[1]
    heads = getattr(config, "num_hidden_layers", 1) * getattr(config, "num_attention_heads", 1)
    if document.alignment and heads * queries * keys > MOST_WEIGHTS:
        raise BadValue(
            "alignment: {heads} heads, {queries} queries and {keys} keys have more weights "
            "than the limit of {most_weights} for one text; use shorter texts",
            heads=heads,
            queries=queries,
            keys=keys,
            most_weights=MOST_WEIGHTS,
        )


def align(
    into: Alignment,
    document: CorpusDocument,
    loaded: Loaded,
    inputs: dict[str, Tensor],
    seen: Recorder,
) -> None:
    """Compare heads with the gold pairs of a document; use only cross-attention if there is any.

    In a reaction in SMILES, the prediction of a head is the atom before the arrow with most weight.
    """
    if not document.alignment:
        return
    part = "cross" if any(head.layer.part == "cross" for head in seen.weights) else ""
    weights = {head: table[0] for head, table in seen.weights.items() if head.layer.part == part}
    keys = None
    if "input_ids" in inputs:
        names = loaded.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
        keys = atoms(names)
    with error_context("alignment", "pairs"):
        into.add(weights, document.alignment, keys=keys)


def atoms(names: list[str]) -> Tensor | None:
    """Return (Lk,), True for the atoms before the arrow of a reaction; None without an arrow.

    Example:
        >>> atoms(["[CLS]", "C", "Cl", "=", "[nH]", ">>", "C", "[SEP]"]).int().tolist()
        [0, 1, 1, 0, 1, 0, 0, 0]
    """
    if ARROW not in names:
        return None
    arrow = names.index(ARROW)
    is_atom = [n < arrow and ATOM.fullmatch(name) is not None for n, name in enumerate(names)]
    return torch.tensor(is_atom)


@dataclass(frozen=True, eq=False)
class Measurer:
    """A model that measures documents.

    Attributes:
        loaded: the model and its tokenizer.
        truncate: whether to truncate documents that are too long instead of raising an error.
        random: a copy of the model with random weights, the baseline of names; None without names.
        points: the ids of punctuation tokens.
        folder: the folder of the audio files that documents refer to.
        compare: whether heads are compared with each other if they are named.
    """

    loaded: Loaded
    truncate: bool = False
    random: Loaded | None = None
    points: frozenset[int] = frozenset()
    folder: Path = Path()
    compare: bool = True

    @classmethod
    def of(
        cls, loaded: Loaded, *, truncate: bool, names: bool, folder: Path = Path()
    ) -> "Measurer":
        """Create a measurer; ``names`` needs a random copy, which may raise `BadType`."""
        random = replace(loaded, model=random_copy(loaded.model)) if names else None
        return cls(loaded, truncate, random, punctuation(loaded.tokenizer), folder)

    def check(self, document: CorpusDocument) -> None:
        """Raise `BadFile` if a document has no token or too many; the model is not run."""
        with _errors_of(document):
            for text in (document.text, document.target):
                if text is not None:
                    count = length(self.loaded, text)
                    if not self.truncate:
                        check_length(self.loaded, count)

    def measure(self, document: CorpusDocument) -> Half:
        """Return the sums over one document; raise `BadFile` if the model cannot read it."""
        with _errors_of(document):
            inputs, whole = self.encode(document)
            return self.measure_inputs(document, inputs, whole)

    def encode(self, document: CorpusDocument) -> tuple[dict[str, Tensor], int]:
        """Return the model inputs for a document, and its number of tokens before truncation."""
        text = document.text
        if takes_sound(self.loaded.model):
            text = str(self.folder / text)
        return encode(self.loaded, text, truncate=self.truncate, target=document.target)

    def measure_inputs(
        self, document: CorpusDocument, inputs: dict[str, Tensor], whole: int
    ) -> Half:
        """Return the sums over one tokenized document, which had ``whole`` tokens originally."""
        check_size(document, inputs, self.loaded.config)
        names = self.random is not None
        compare = names and self.compare and compared(self.loaded, inputs)
        recorder = self._captured(self.loaded, inputs, compare or bool(document.alignment))
        tokens = inputs["input_ids" if "input_ids" in inputs else "decoder_input_ids"].shape[1]
        half = Half(statistics=recorder.statistics)
        align(half.alignment, document, self.loaded, inputs, recorder)
        half.count(tokens=tokens, cut=tokens < whole)
        if self.random is not None:
            take(half.evidence, self.loaded, document, recorder)
            take(half.random, self.random, document, self._captured(self.random, inputs, compare))
        return half

    def _captured(self, loaded: Loaded, inputs: dict[str, Tensor], keep: bool) -> Recorder:
        heads, special = "all" if keep else (), separators(loaded.tokenizer)
        with capture(
            loaded.model, heads=heads, separators=special, punctuation=self.points
        ) as recorder:
            run(loaded, inputs)
        return recorder


@contextmanager
def _errors_of(document: CorpusDocument) -> Iterator[None]:
    try:
        yield
    except HeadwiseError as error:
        problem = error.text
        raise BadFile("corpus: {where}: {problem}", where=document.name, problem=problem) from error


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
"""The parts of an identity and their names in messages."""


def identity(measurer: Measurer, corpus: Corpus, processes: int) -> dict[str, Any]:
    """Return everything that the numbers of a run depend on."""
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


def check_same(folder: Path, new: Mapping[str, Any], earlier: Mapping[str, Any]) -> None:
    """Raise `BadFile` unless the run in a folder has the same identity as the new run."""
    different = [PARTS[key] for key in PARTS if new.get(key) != earlier.get(key)]
    if different:
        raise BadFile(
            "save: the run in {name} differs in {parts}; choose another folder, or the same "
            "model, corpus and options",
            name=clean(str(folder)),
            parts=joined(Text(", "), different),
        )


def _of_model(loaded: Loaded) -> str:
    """Return a hash of the weights and of the configuration without its paths.

    The pooler is excluded, since it comes after all attention and may be randomly initialised.
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
