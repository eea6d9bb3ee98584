"""Evidence from texts that are read by a model, and the names that follow, in one call each."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from headwise.heads.capture import capture
from headwise.heads.capture.recorder import Recorder
from headwise.heads.corpus.document import Document
from headwise.heads.inputs import encode, run, separators
from headwise.heads.models.load import Loaded
from headwise.heads.taxonomy.evidence import Evidence
from headwise.heads.taxonomy.naming import taxonomy
from headwise.heads.taxonomy.random_copy import SEED, random_copy
from headwise.heads.taxonomy.trials import Trial
from headwise.heads.words import pieces

MOST_WEIGHTS = 1 << 26
"""How many weights of one text are kept to compare heads by; of a longer one only statistics."""

MARKS = "Ġ▁Ċ"
"""What tokenizers write for a blank or a line's end."""


def names_of_heads(
    loaded: Loaded, documents: Sequence[Document], *, error: float = 0.05, seed: int = SEED
) -> tuple[Trial, ...]:
    """The names of a model's heads on a corpus: every second text suggests, the others test.

    Args:
        loaded: the model and its tokenizer.
        documents: the corpus, which is read twice: by the model and by its random copy.
        error: the chance that a model without structure is given any name at all.
        seed: of the random copy.

    Raises:
        BadValue: if there are fewer than two texts.
        BadFile: if the model does not run on them.
    """
    first, second = read(loaded, documents)
    random, more = read(replace(loaded, model=random_copy(loaded.model, seed=seed)), documents)
    random.merge(more)
    return taxonomy(first, second, random, error=error)


def read(loaded: Loaded, documents: Iterable[Document]) -> tuple[Evidence, Evidence]:
    """The evidence of every second text, and of the others; texts that are too long are cut."""
    halves = Evidence(), Evidence()
    points = punctuation(loaded.tokenizer)
    for number, document in enumerate(documents):
        observe(halves[number % 2], loaded, document, points)
    return halves


def observe(
    evidence: Evidence, loaded: Loaded, document: Document, points: frozenset[int] = frozenset()
) -> None:
    """Read one text with a model and take in what its heads do.

    Args:
        evidence: what it is added to.
        loaded: the model and its tokenizer.
        document: the text.
        points: the ids of punctuation, as `punctuation` finds them once for all texts.
    """
    inputs, _ = encode(loaded, document.text, truncate=True, target=document.target)
    heads = "all" if compared(loaded, inputs) else ()
    marks = separators(loaded.tokenizer)
    with capture(loaded.model, heads=heads, separators=marks, punctuation=points) as seen:
        run(loaded, inputs)
    take(evidence, loaded, document, seen)


def take(evidence: Evidence, loaded: Loaded, document: Document, seen: Recorder) -> None:
    """Take in what a capture of one text alone has seen.

    Args:
        evidence: what it is added to.
        loaded: the model and its tokenizer.
        document: the text.
        seen: the capture, with all weights where they were kept.
    """
    evidence.add(
        seen.statistics,
        {head: table[0] for head, table in seen.weights.items()},
        {head: table[0] for head, table in seen.allowed.items()},
        words=words_of(loaded, document),
        document=document,
    )


def compared(loaded: Loaded, inputs: dict[str, Tensor]) -> bool:
    """Whether all weights of a text are few enough to be kept, so that heads can be compared."""
    heads = getattr(loaded.config, "num_attention_heads", None)
    layers = getattr(loaded.config, "num_hidden_layers", None)
    if not isinstance(heads, int) or not isinstance(layers, int):
        return False
    longest = max(each.shape[1] for name, each in inputs.items() if name.endswith("input_ids"))
    return heads * layers * longest * longest <= MOST_WEIGHTS


def words_of(loaded: Loaded, document: Document) -> list[list[int]]:
    """The tokens of each word of a text; none where there are no words or the tokenizer is slow."""
    if not document.words or not getattr(loaded.tokenizer, "is_fast", False):
        return []
    encoded: Any = loaded.tokenizer(
        document.text,
        padding=False,
        truncation=True,
        max_length=loaded.longest,
        return_offsets_mapping=True,
    )
    return pieces(document.words, encoded["offset_mapping"])


def punctuation(tokenizer: Any) -> frozenset[int]:
    """The ids of tokens that are nothing but punctuation, as Unicode has it; special ones apart."""
    special = set(tokenizer.all_special_ids)
    return frozenset(
        number
        for word, number in tokenizer.get_vocab().items()
        if number not in special and _points(word)
    )


def _points(word: str) -> bool:
    bare = word.removeprefix("##").strip(MARKS).strip()
    return bool(bare) and all(unicodedata.category(each).startswith("P") for each in bare)
