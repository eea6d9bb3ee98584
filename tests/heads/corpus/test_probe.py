"""The probe of repeated random tokens: its sequences, and the induction heads that it finds."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.errors import BadValue
from headwise.heads.corpus import probe
from headwise.heads.corpus.measurement import Measurer
from headwise.heads.corpus.probe import FEWEST, SEQUENCES, TIMES, TOKENS, probed, sequences, shape
from headwise.heads.metrics import METRICS
from headwise.heads.models.load import Loaded
from headwise.heads.names import Head
from tests.heads.tiny import bart, gpt2, tokenizer

INDUCTION = next(metric for metric in METRICS if metric.name == "induction")


def toy(most: int = 500, positions: int = 128) -> Loaded:
    """A tiny decoder; its tokenizer knows 500 words."""
    from tests.heads import tiny

    config = gpt2().config
    config.n_positions = config.max_position_embeddings = positions
    config.vocab_size = most
    model = tiny._made(type(gpt2())(config))
    words = SimpleNamespace(
        all_special_ids=[0, 3],
        unk_token_id=0,
        model_max_length=positions,
        get_vocab=lambda: {f"w{number}": number for number in range(most)},
    )
    return Loaded("toy", "directory", model, _Sized(words, most))


class _Sized:
    def __init__(self, inner: SimpleNamespace, size: int) -> None:
        self._inner, self._size = inner, size

    def __len__(self) -> int:
        return self._size

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_each_sequence_is_25_other_tokens_four_times() -> None:
    found = sequences(toy(), seed=7)
    assert len(found) == SEQUENCES
    for ids in found:
        assert len(ids) == TOKENS * TIMES
        assert ids == ids[:TOKENS] * TIMES
        assert len(set(ids)) == TOKENS
        assert not {0, 3} & set(ids)
    assert len({tuple(ids) for ids in found}) == SEQUENCES
    assert found == sequences(toy(), seed=7) != sequences(toy(), seed=8)


def test_a_model_with_few_positions_is_given_what_fits() -> None:
    """As many tokens as twice fit, and then as often as they fit."""
    for longest in range(2 * FEWEST, 200):
        tokens, times = shape(longest)
        assert 2 <= times <= TIMES
        assert tokens * times <= longest
        assert tokens == TOKENS or times == 2
        assert times == TIMES or tokens * (times + 1) > longest
    assert shape(TOKENS * TIMES) == (TOKENS, TIMES)


@pytest.mark.parametrize(("positions", "wanted"), [(64, (25, 2)), (37, (18, 2)), (8, (4, 2))])
def test_and_its_heads_are_measured_on_it(
    monkeypatch: pytest.MonkeyPatch, positions: int, wanted: tuple[int, int]
) -> None:
    monkeypatch.setattr(probe, "SEQUENCES", 2)
    tokens, times = wanted
    loaded = toy(positions=positions)
    for ids in sequences(loaded):
        assert ids == ids[:tokens] * times
        assert len(set(ids)) == tokens
    run = probed(Measurer.of(loaded, truncate=False, names=False))
    assert run.corpus["file"] == f"{tokens} random tokens, {times} times, seed 0"
    assert run.gathered.whole().number("tokens") == 2 * tokens * times


def test_every_head_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SEQUENCES", 4)
    seen: list[tuple[int, int]] = []
    given = Measurer.of(toy(), truncate=False, names=True)
    run = probed(given, progress=lambda done, whole: seen.append((done, whole)))
    assert seen == [(done, 4) for done in range(1, 5)]
    assert run.gathered.whole().number("tokens") == 4 * TOKENS * TIMES
    assert run.gathered.second.number("documents") == 2
    assert {named.head for named in run.names} == set(run.gathered.whole().statistics.heads())
    assert not run.gathered.first.evidence.similarity.heads()


@pytest.mark.slow
def test_smollm2_has_induction_heads() -> None:
    """Acceptance: L18H6 at .85 or more, five of 270 above .5, and the name holds."""
    from headwise.heads.models import is_cached, model_named
    from headwise.heads.models.load import load

    if not is_cached(model_named("smollm2")):
        pytest.skip("smollm2 is not got; headwise models get smollm2")
    run = probed(Measurer.of(load("smollm2"), truncate=False, names=True))
    whole = run.gathered.whole().statistics
    scores = {head: whole.value(INDUCTION, head) for head in whole.heads()}
    assert scores[Head.parse("L18H6")] >= 0.85
    assert sum(score > 0.5 for score in scores.values()) >= 5
    names = {(str(named.head), named.name) for named in run.names}
    assert ("L18H6", "induction") in names
    assert ("L18H8", "first-token sink") in names


def test_what_cannot_be_probed_is_refused(tmp_path: Path) -> None:
    for positions in range(1, 2 * FEWEST):
        with pytest.raises(
            BadValue,
            match=rf"the probe has at least 8 tokens, but toy accepts at most {positions}; use",
        ) as caught:
            sequences(toy(positions=positions))
        assert "--truncate" not in caught.value.text.zh
    with pytest.raises(
        BadValue, match=r"probe: the probe needs 18 different tokens, but toy has 15"
    ):
        sequences(Loaded("toy", "directory", gpt2(), tokenizer()))
    with pytest.raises(
        BadValue, match=r"probe: the probe needs 25 different tokens, but toy has 18"
    ):
        sequences(toy(20))
    with pytest.raises(BadValue, match=r"seed: expected a number from 0 to .*, got -1; use 0"):
        sequences(toy(), seed=-1)
    both = Loaded("toy", "directory", bart(), tokenizer())
    both.model.config.max_position_embeddings = 128
    with pytest.raises(BadValue, match=r"probe: toy is an encoder-decoder, which the probe"):
        sequences(both)
