"""The repeated-tokens probe: measure induction heads on repeated random tokens.

Random tokens can be predicted only from their repetition. An induction head attends to the token
after the previous occurrence of a token, a duplicate-token head to the previous occurrence, and a
previous-token head to the previous token.

Source: Olsson et al. 2022, "In-context learning and induction heads": 25 random tokens, repeated
4 times. For a model that accepts fewer than 100 tokens, `shape` reduces both numbers.
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
FEWEST = 4  # the fewest different tokens in a sequence

SEQUENCES = 48
"""The number of sequences, each of different tokens. One half suggests names, the other half tests
them; this many are needed for a name to be significant among thousands of candidates."""

MOST_SEED = 2**63 - 1


def shape(longest: int) -> tuple[int, int]:
    """Return the numbers of different tokens and of repetitions for a maximum sequence length.

    Repetitions are reduced first, then tokens.

    Example:
        >>> [shape(longest) for longest in (512, 99, 64, 40)]
        [(25, 4), (25, 3), (25, 2), (20, 2)]
    """
    tokens = min(TOKENS, longest // 2)
    return tokens, min(TIMES, longest // max(1, tokens))


def named(tokens: int, times: int, seed: int) -> str:
    """Return the name of the probe in a run."""
    return f"{tokens} random tokens, {times} times, seed {seed}"


def sequences(loaded: Loaded, seed: int = 0) -> list[list[int]]:
    """Return the sequences of token ids, without special tokens.

    Raises `BadValue` if the vocabulary is too small, the seed is out of range, or the model accepts
    too few tokens or is an encoder-decoder.
    """
    _check(loaded, seed)
    tokens, times = shape(loaded.longest)
    special = set(loaded.tokenizer.all_special_ids)
    size = min(loaded.config.vocab_size, len(loaded.tokenizer))
    ordinary = torch.tensor([number for number in range(size) if number not in special])
    if len(ordinary) < tokens:
        raise BadValue(
            "probe: the probe needs {tokens} different tokens, but {loaded_name} has "
            "{num_ordinary} without special tokens; use another model, or --corpus",
            loaded_name=clean(loaded.name),
            num_ordinary=len(ordinary),
            tokens=tokens,
        )
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(ordinary), generator=generator) for _ in range(SEQUENCES)]
    return [ordinary[order[:tokens]].tolist() * times for order in orders]


def probed(measurer: Measurer, *, seed: int = 0, progress: Progress | None = None) -> Run:
    """Measure every head on the sequences of the probe."""
    loaded, gathered = measurer.loaded, Gathered()
    measurer = replace(measurer, compare=False)  # similarity on random tokens means nothing
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
            "probe: the probe has at least {fewest} tokens, but {loaded_name} accepts at most "
            "{longest}; use a text in quotes, or --text",
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
            "probe: {loaded_name} is an encoder-decoder, which the probe does not support; use "
            "another model, or --corpus",
            loaded_name=name,
        )
