"""Names from a model and its texts: tiny models, and MiniLM on a treebank."""

from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.heads.corpus.conllu import read_conllu
from headwise.heads.corpus.documents import CorpusDocument, Entity, Parse
from headwise.heads.models.load import Loaded
from headwise.heads.names import Head
from headwise.heads.naming import Named, assignment, names_of_heads, read
from headwise.heads.naming.assignment import compared, punctuation, words_of
from headwise.heads.naming.evidence import JUDGED
from tests.heads import tiny

WORDS = ("the", "cat", "sat", "on", "a", "mat")


def texts(count: int) -> list[CorpusDocument]:
    make = torch.Generator().manual_seed(1)
    found = []
    for number in range(count):
        drawn = torch.randint(0, 6, (int(torch.randint(3, 9, (), generator=make)),), generator=make)
        words = [WORDS[each] for each in drawn]
        starts = [sum(len(word) + 1 for word in words[:n]) for n in range(len(words))]
        spans = tuple((at, at + len(word)) for at, word in zip(starts, words, strict=True))
        tree = Parse((-1, *range(len(words) - 1)), ("root", *["dep"] * (len(words) - 1)))
        name = f"drawn:{number}"
        found.append(CorpusDocument(name, " ".join(words), spans, tree, (Entity(1, 2, "animal"),)))
    return found


def toy(make: tiny.Make = tiny.bert) -> Loaded:
    return Loaded("toy", "directory", make(), tiny.tokenizer())


def test_every_second_text_is_of_the_other_half() -> None:
    documents = texts(5)
    first, second = read(toy(), documents)
    alone, nothing = read(toy(), documents[:1])
    assert nothing.heads() == ()
    head = Head.parse("L0H0")
    assert [each.share(JUDGED[0], head).texts for each in (first, second, alone)] == [3, 2, 1]
    assert first.syntax.count("dep") == sum(len(each.words) - 1 for each in documents[::2])
    assert second.entities.count() == (2, 2)
    assert len(first.similarity.heads()) == 6


def test_a_toy_is_read_twice_and_gets_no_name() -> None:
    found = names_of_heads(toy(), texts(12))
    assert [(str(each.head), each.name) for each in found] == [
        (f"L{layer}H{head}", "unexplained") for layer in range(2) for head in range(3)
    ]


def test_an_encoder_decoder_is_told_in_parts() -> None:
    first, _ = read(toy(tiny.bart), texts(2))
    parts = {head.layer.part for head in first.heads()}
    assert parts == {"encoder", "decoder", "cross"}
    assert {head.layer.part for head in first.syntax.heads()} == {"encoder"}
    pairs = first.similarity.pairs()
    assert {one.layer.part for one, _ in pairs} == parts
    assert all(one.layer.part == other.layer.part for one, other in pairs)


def test_of_long_texts_only_statistics_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "MOST_WEIGHTS", 1)
    first, _ = read(toy(), texts(2))
    assert first.heads()
    assert first.similarity.heads() == ()
    assert first.syntax.relations() == ()


def test_a_model_whose_size_is_not_known_is_not_compared() -> None:
    class Unknown(nn.Module):
        config = object()

    given = {"input_ids": torch.zeros(1, 3)}
    assert compared(toy(), given)
    assert not compared(Loaded("x", "directory", Unknown(), None), given)


def test_a_text_without_words_has_none_and_a_slow_tokenizer_tells_of_none() -> None:
    assert words_of(toy(), CorpusDocument("x", "the cat")) == []
    document = texts(1)[0]
    assert words_of(toy(), document) == [[n + 1] for n in range(len(document.words))]
    loaded = toy()

    class Slow:
        is_fast = False

    assert words_of(Loaded("toy", "directory", loaded.model, Slow()), document) == []


def test_punctuation_is_what_unicode_says_and_no_special_token() -> None:
    class Vocabulary:
        all_special_ids = (0,)

        def get_vocab(self) -> dict[str, int]:
            words = ("[SEP]", ".", "##,", "Ġ(", "▁“", "。", "the", "a.", "$", "Ġ", "##")
            return {word: number for number, word in enumerate((*words, "-"), 0)}

    vocabulary = Vocabulary()
    assert punctuation(vocabulary) == {1, 2, 3, 4, 5, 11}
    vocabulary.all_special_ids = (1,)
    assert 1 not in punctuation(vocabulary)


TREEBANK = Path(__file__).parents[4] / "shared" / "data" / "en_pud_first_500.conllu"


@pytest.mark.slow
def test_minilm_is_named_and_its_random_copy_is_not() -> None:
    from headwise.heads.models import is_cached, model_named
    from headwise.heads.models.load import load
    from headwise.heads.naming import random_copy

    if not is_cached(model_named("minilm")):
        pytest.skip("minilm is not in the cache; headwise models get minilm")
    if not TREEBANK.exists():
        pytest.skip("the treebank is not beside the repository: its licence keeps it out")
    documents, loaded = list(read_conllu(TREEBANK)), load("minilm")
    found: dict[str, dict[str, Named]] = {}
    for each in names_of_heads(loaded, documents):
        found.setdefault(str(each.head), {})[each.name] = each
    assert found["L0H2"]["previous-token"].value >= 0.99
    assert found["L0H2"]["previous-token"].random <= 0.05
    assert "next-token" in found["L1H8"]
    assert "first-token sink" in found["L1H11"]
    assert found["L2H0"]["syntax: obj"].value >= 0.70
    assert found["L2H0"]["syntax: obj"].rule <= 0.45
    assert found["L2H8"]["syntax: det"].value >= 0.75
    fresh = Loaded("fresh", "directory", random_copy(loaded.model, seed=2), loaded.tokenizer)
    assert {each.name for each in names_of_heads(fresh, documents[:100])} == {"unexplained"}
