"""A probe that needs no corpus: random tokens, repeated, on which induction heads show themselves.

Text tells a model what comes next in many ways; of random tokens only the repetition does. A head
that looks at what followed the token the last time is an induction head, one that looks at the
token itself a duplicate-token head, one that looks one place back a previous-token head.

Source: Olsson et al. 2022, "In-context learning and induction heads": 25 random tokens, repeated
4 times.
"""

from dataclasses import replace

import torch

from headwise.document.plain import clean
from headwise.errors import BadValue
from headwise.heads.corpus.document import Document
from headwise.heads.corpus.gathered import Gathered
from headwise.heads.corpus.measuring import Measurer
from headwise.heads.corpus.running import Progress
from headwise.heads.corpus.saved import Run
from headwise.heads.facts import facts_of
from headwise.heads.inputs import check_length
from headwise.heads.models.load import Loaded

TOKENS, TIMES = 25, 4

SEQUENCES = 48
"""How many sequences are read, each of other tokens; every second one suggests names, the others
test them. So many are needed for a name to hold among some thousands that are tried."""

MOST_SEED = 2**63 - 1


def sequences(loaded: Loaded, seed: int = 0) -> list[list[int]]:
    """The sequences of token ids; special tokens are not among them.

    Raises:
        BadValue: if the vocabulary is too small, the seed is no seed, or the model takes fewer
            tokens or has a decoder that reads another text.
    """
    _check(loaded, seed)
    special = set(loaded.tokenizer.all_special_ids)
    size = min(loaded.config.vocab_size, len(loaded.tokenizer))
    ordinary = torch.tensor([number for number in range(size) if number not in special])
    if len(ordinary) < TOKENS:
        raise BadValue(
            f"probe: {clean(loaded.name)} has {len(ordinary)} ordinary tokens, and the probe takes "
            f"{TOKENS} different ones; give another model",
            f"probe：{clean(loaded.name)} 只有 {len(ordinary)} 个普通词元，而探测需要 {TOKENS} 个"
            "不同的；请换一个模型",
        )
    make = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(SEQUENCES):
        chosen = ordinary[torch.randperm(len(ordinary), generator=make)[:TOKENS]]
        found.append(chosen.tolist() * TIMES)
    return found


def probed(measurer: Measurer, *, seed: int = 0, progress: Progress | None = None) -> Run:
    """What every head does on the sequences.

    Raises:
        BadValue: as `sequences`.
        BadFile: if the model does not run on them.
    """
    loaded, gathered = measurer.loaded, Gathered()
    alone = replace(measurer, compare=False)  # on random tokens, that heads agree says little
    given = sequences(loaded, seed)
    for number, ids in enumerate(given):
        tokens = torch.tensor([ids])
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        document = Document(f"sequence {number}", "")
        gathered.half(number).merge(alone.measure_inputs(document, inputs, len(ids)))
        if progress is not None:
            progress(number + 1, len(given))
    return Run(
        model=facts_of(loaded, gathered.whole().statistics),
        corpus={
            "file": f"{TOKENS} random tokens, {TIMES} times, seed {seed}",
            "sha256": "",
            "documents": len(given),
            "paragraphs": False,
            "truncate": False,
        },
        gathered=gathered,
        identity={},
    )


def _check(loaded: Loaded, seed: int) -> None:
    check_length(loaded, TOKENS * TIMES)
    if not 0 <= seed <= MOST_SEED:
        raise BadValue(
            f"seed: expected a number from 0 to {MOST_SEED}, got {seed}; use 0",
            f"seed：应为 0 到 {MOST_SEED} 的数，收到 {seed}；可用 0",
        )
    if getattr(loaded.config, "is_encoder_decoder", False):
        raise BadValue(
            f"probe: {clean(loaded.name)} has a decoder that reads another text; give a model of "
            "one stack, or a corpus with --corpus",
            f"probe：{clean(loaded.name)} 的解码器读另一段文本；请给出单栈模型，"
            "或用 --corpus 给出语料",
        )
