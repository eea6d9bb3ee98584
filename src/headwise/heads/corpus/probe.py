"""The repeated-tokens probe: repeated random tokens, on which induction heads can be measured.

Random tokens can be predicted from their repetition alone. A head that attends to the token after
the previous occurrence is an induction head, one that attends to the previous occurrence a
duplicate-token head, one that attends one token back a previous-token head.

Source: Olsson et al. 2022, "In-context learning and induction heads": 25 random tokens, repeated
4 times. A model that takes fewer than 100 tokens is given fewer; see `shape`.
"""

from dataclasses import replace
from pathlib import Path

import torch

from headwise.document.text_format import clean
from headwise.errors import BadValue
from headwise.heads.corpus.accumulated import Gathered
from headwise.heads.corpus.checkpoint import Run
from headwise.heads.corpus.documents import CorpusDocument
from headwise.heads.corpus.measurement import Measurer
from headwise.heads.corpus.pipeline import Progress, run_of
from headwise.heads.corpus.readers import Corpus
from headwise.heads.models.load import Loaded

TOKENS, TIMES = 25, 4
FEWEST = 4  # the smallest number of different tokens in a sequence

SEQUENCES = 48
"""The number of sequences, each of other tokens; every second one suggests names, the others test
them. So many are needed for a name to be significant among thousands of candidates."""

MOST_SEED = 2**63 - 1


def shape(longest: int) -> tuple[int, int]:
    """The numbers of different tokens and of repetitions in a sequence of limited length.

    The later repetitions are dropped first, then tokens.

    Example:
        >>> [shape(longest) for longest in (512, 99, 64, 40)]
        [(25, 4), (25, 3), (25, 2), (20, 2)]
    """
    tokens = min(TOKENS, longest // 2)
    return tokens, min(TIMES, longest // max(1, tokens))


def named(tokens: int, times: int, seed: int) -> str:
    """The name of the sequences in a run."""
    return f"{tokens} random tokens, {times} times, seed {seed}"


def sequences(loaded: Loaded, seed: int = 0) -> list[list[int]]:
    """The sequences of token ids, without special tokens.

    Raises `BadValue` if the vocabulary is too small, the seed is out of range, or the model takes
    too few tokens or is an encoder-decoder.
    """
    _check(loaded, seed)
    tokens, times = shape(loaded.longest)
    special = set(loaded.tokenizer.all_special_ids)
    size = min(loaded.config.vocab_size, len(loaded.tokenizer))
    ordinary = torch.tensor([number for number in range(size) if number not in special])
    if len(ordinary) < tokens:
        raise BadValue(
            "probe: {loaded_name} has {num_ordinary} ordinary tokens, and the probe "
            "takes {tokens} different ones; give another model, or a corpus with --corpus",
            loaded_name=clean(loaded.name),
            num_ordinary=len(ordinary),
            tokens=tokens,
        )
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(ordinary), generator=generator) for _ in range(SEQUENCES)]
    return [ordinary[order[:tokens]].tolist() * times for order in orders]


def probed(measurer: Measurer, *, seed: int = 0, progress: Progress | None = None) -> Run:
    """Measure every head on the sequences."""
    loaded, gathered = measurer.loaded, Gathered()
    measurer = replace(measurer, compare=False)  # random tokens tell nothing of similarity
    batches, (tokens, times) = sequences(loaded, seed), shape(loaded.longest)
    for number, ids in enumerate(batches):
        input_ids = torch.tensor([ids])
        inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        document = CorpusDocument(f"sequence {number}", "")
        gathered.half(number).merge(measurer.measure_inputs(document, inputs, len(ids)))
        if progress is not None:
            progress(number + 1, len(batches))
    corpus = Corpus(Path(named(tokens, times, seed)), False, len(batches), "")
    return run_of(loaded, corpus, gathered, identity={})


def _check(loaded: Loaded, seed: int) -> None:
    name = clean(loaded.name)
    if loaded.longest < 2 * FEWEST:
        raise BadValue(
            "probe: it has {fewest} tokens at least, and {loaded_name} takes at most "
            "{longest}; give a text in quotes after the model, or with --text",
            fewest=2 * FEWEST,
            loaded_name=name,
            longest=loaded.longest,
        )
    if not 0 <= seed <= MOST_SEED:
        raise BadValue(
            "seed: expected a number from 0 to {most_seed}, got {seed}; use 0",
            most_seed=MOST_SEED,
            seed=seed,
        )
    if getattr(loaded.config, "is_encoder_decoder", False):
        raise BadValue(
            "probe: {loaded_name} has a decoder that reads another text; give a model of "
            "one stack, or a corpus with --corpus",
            loaded_name=name,
        )
