"""Assign names to heads from the evidence of two halves of a corpus and of a random copy."""

import copy
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import BadType, BadValue
from headwise.heads.analysis.attention_maps import pieces
from headwise.heads.capture import capture
from headwise.heads.capture.recorder import Recorder
from headwise.heads.corpus.documents import CorpusDocument
from headwise.heads.model_inputs import encode, run, separators
from headwise.heads.models.load import Loaded
from headwise.heads.naming.candidates import CRITERIA, TRIED, Halves, Trial
from headwise.heads.naming.evidence import Evidence
from headwise.heads.sums import holm
from headwise.lang import Text

Named = Trial  # an assigned name: a candidate with a small enough corrected p-value
UNEXPLAINED = "unexplained"


def taxonomy(
    first: Evidence, second: Evidence, random: Evidence, *, error: float = 0.05
) -> tuple[Named, ...]:
    """Return the names of every head, layer by layer; a head without name is "unexplained".

    Args:
        first: the evidence from one half of a corpus, which suggests names.
        second: the evidence from the other half, which tests names and gives the reported values.
        random: the evidence from a random copy of the model on all texts; see `random_copy`.
        error: the family-wise error rate: the probability that any head of a model without
            structure gets a name.

    Raises:
        BadValue: if ``error`` is not between 0 and 1, or the halves have different heads.

    Source: Pande et al. 2021 for the idea of a test over texts with correction; Holm 1979.
    """
    if not 0 < error < 1:
        raise BadValue(
            "error: expected a probability between 0 and 1, got {error}; use error=0.05",
            error=error,
        )
    heads = first.heads()
    if set(heads) != set(second.heads()) or not heads:
        raise BadValue(
            "second: expected evidence of the {num_heads} heads of the first half, got "
            "{num_heads_2} heads; measure at least two texts with the same model",
            num_heads=len(heads),
            num_heads_2=len(second.heads()),
        )
    level = error / (len(heads) * (len(CRITERIA) + len(TRIED)))
    halves = Halves(first, second, random, level)
    claims = list(chain.from_iterable(candidates(halves) for candidates in TRIED))
    chances = holm([trial.chance for trial in claims])
    corrected = map(Trial.corrected, claims, chances)
    assigned = [trial for trial in corrected if trial.chance <= error]
    named = {trial.head for trial in assigned}
    title, criterion = Text("unexplained"), Text("no name passed its test")
    assigned += [Trial(h, UNEXPLAINED, title, criterion) for h in heads if h not in named]
    return tuple(sorted(assigned, key=lambda trial: (trial.head, trial.chance)))


SEED = 7919  # an unusual seed, so the copy of an untrained model differs from the model


def random_copy(model: nn.Module, *, seed: int = SEED) -> nn.Module:
    """Return a model of the same class and sizes with newly initialised weights.

    The copy is in eval mode, on the same device and with the same attention implementation.

    Args:
        model: a transformers model, or a model in which every module with parameters has
            ``reset_parameters``.
        seed: the seed of the weights; the global random state is not changed.

    Raises:
        BadType: if a module cannot be reinitialised, or was changed after construction.
    """
    fresh = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build: Any = getattr(type(model), "_from_config", None)
        if build is None:
            _reset(fresh)
        else:
            _copy_weights(fresh, build(copy.deepcopy(model.config)))
    return fresh.eval()


def _copy_weights(model: nn.Module, new: nn.Module) -> None:
    """Copy the weights of a new model of the same configuration, which may have more parameters."""
    state, own = new.state_dict(), model.state_dict()
    for name, weight in own.items():
        if name not in state or state[name].shape != weight.shape:
            raise BadType(
                "model: expected the parameters of its configuration, got {name} of shape "
                "{weight_shape}; make the copy before pruning or changing the model",
                name=name,
                weight_shape=tuple(weight.shape),
            )
    model.load_state_dict({name: state[name] for name in own})


def _reset(model: nn.Module) -> None:
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        begin: Any = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if own and begin is None:
            raise BadType(
                "model: expected modules with reset_parameters, got {name} ({module_type}); use a "
                "transformers model, or add the method",
                name=name or type(model).__name__,
                module_type=type(module).__name__,
            )
        if begin is not None:
            begin()


MOST_WEIGHTS = 1 << 26  # the most attention weights of a text that are stored to compare heads
MARKS = "Ġ▁Ċ"  # the characters with which tokenizers replace a space or a line break


def names_of_heads(
    loaded: Loaded, documents: Sequence[CorpusDocument], *, error: float = 0.05, seed: int = SEED
) -> tuple[Trial, ...]:
    """Name the heads of a model: one half of the texts suggests names, the other half tests them.

    Args:
        loaded: the model and its tokenizer.
        documents: the corpus; the model and its random copy run on all documents.
        error: the family-wise error rate; see `taxonomy`.
        seed: the seed of the random copy.

    Raises:
        BadValue: if there are fewer than two texts.
        BadFile: if the model does not run on a text.
    """
    first, second = read(loaded, documents)
    random, more = read(replace(loaded, model=random_copy(loaded.model, seed=seed)), documents)
    random.merge(more)
    return taxonomy(first, second, random, error=error)


def read(loaded: Loaded, documents: Iterable[CorpusDocument]) -> tuple[Evidence, Evidence]:
    """Return the evidence of documents 0, 2, 4 … and 1, 3, 5 …; long texts are truncated."""
    halves = Evidence(), Evidence()
    points = punctuation(loaded.tokenizer)
    for number, document in enumerate(documents):
        observe(halves[number % 2], loaded, document, points)
    return halves


def observe(
    evidence: Evidence,
    loaded: Loaded,
    document: CorpusDocument,
    points: frozenset[int] = frozenset(),
) -> None:
    """Run a model on one text and add the evidence of its heads.

    ``points`` are the ids of punctuation tokens; see `punctuation`.
    """
    inputs, _ = encode(loaded, document.text, truncate=True, target=document.target)
    heads = "all" if compared(loaded, inputs) else ()
    marks = separators(loaded.tokenizer)
    with capture(loaded.model, heads=heads, separators=marks, punctuation=points) as seen:
        run(loaded, inputs)
    take(evidence, loaded, document, seen)


def take(evidence: Evidence, loaded: Loaded, document: CorpusDocument, seen: Recorder) -> None:
    """Add a capture of one text to the evidence, with the attention weights if they are stored."""
    evidence.add(
        seen.statistics,
        {head: table[0] for head, table in seen.weights.items()},
        {head: table[0] for head, table in seen.allowed.items()},
        words=words_of(loaded, document),
        document=document,
    )


def compared(loaded: Loaded, inputs: dict[str, Tensor]) -> bool:
    """Return whether the attention weights of a text are few enough to compare heads."""
    heads = getattr(loaded.config, "num_attention_heads", None)
    layers = getattr(loaded.config, "num_hidden_layers", None)
    if not isinstance(heads, int) or not isinstance(layers, int):
        return False
    longest = max(tensor.shape[1] for name, tensor in inputs.items() if name.endswith("input_ids"))
    return heads * layers * longest * longest <= MOST_WEIGHTS


def words_of(loaded: Loaded, document: CorpusDocument) -> list[list[int]]:
    """Return the tokens of each word of a text; empty without words or with a slow tokenizer."""
    if not document.words or not getattr(loaded.tokenizer, "is_fast", False):
        return []
    cut = {"padding": False, "truncation": True, "max_length": loaded.longest}
    encoded: Any = loaded.tokenizer(document.text, return_offsets_mapping=True, **cut)
    return pieces(document.words, encoded["offset_mapping"])


def punctuation(tokenizer: Any) -> frozenset[int]:
    """Return the ids of tokens that are only Unicode punctuation, without special tokens."""
    numbers = set()
    for word, number in tokenizer.get_vocab().items():
        characters = word.removeprefix("##").strip(MARKS).strip()
        if characters and all(unicodedata.category(c).startswith("P") for c in characters):
            numbers.add(number)
    return frozenset(numbers - set(tokenizer.all_special_ids))
