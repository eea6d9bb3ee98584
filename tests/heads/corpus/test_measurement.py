"""Gold pairs of a corpus, and the agreement of packaged models with them."""

import json
from pathlib import Path

import pytest

from headwise.cli import main
from headwise.errors import BadValue
from headwise.heads.corpus.documents import CorpusDocument
from headwise.heads.corpus.measurement import atoms, check_size
from headwise.heads.models import is_cached, model_named
from tests.data.alignment.map_reactions import mapped

DATA = Path(__file__).parents[2] / "data" / "alignment"


def test_atoms_before_the_arrow() -> None:
    names = ["[CLS]", "C", "l", "Cl", "1", "=", "[nH]", "c", ".", ">>", "C", "[SEP]"]
    assert [n for n, atom in enumerate(atoms(names).tolist()) if atom] == [1, 3, 6, 7]
    assert atoms(["[CLS]", "C", "[SEP]"]) is None


def test_a_document_with_too_many_weights_is_refused() -> None:
    import torch
    from transformers import LlamaConfig

    ids = {"input_ids": torch.zeros(1, 3000, dtype=torch.long)}
    document = CorpusDocument("a.jsonl:1", "x", alignment=((0, 0),))
    with pytest.raises(BadValue, match=r"1024 heads, 3000 queries and 3000 keys have more"):
        check_size(document, ids, LlamaConfig())
    check_size(CorpusDocument("a.jsonl:1", "x"), ids, LlamaConfig())


def test_numbers_of_a_reaction_become_pairs() -> None:
    assert mapped("C{1}C(=O{2})O>>C{1}O{2}") == {
        "text": "CC(=O)O>>CO",
        "alignment": [[9, 1], [10, 5]],
    }
    with pytest.raises(ValueError, match="the numbers on both sides differ"):
        mapped("C{1}>>C{1}O{2}")
    with pytest.raises(ValueError, match="1 comes from nowhere"):
        mapped("C{1}>>C{1}C{1}")


def test_the_reactions_are_those_of_the_text() -> None:
    lines = (DATA / "reactions.txt").read_text(encoding="utf-8").splitlines()
    expected = [mapped(line) for line in lines if line and not line.startswith("#")]
    assert len(expected) == 20
    kept = (DATA / "reactions.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in kept] == expected


def aligned(model: str, corpus: str, folder: Path) -> dict[str, dict[str, float]]:
    """One command, and what it says of each head."""
    if not is_cached(model_named(model)):
        pytest.skip(f"{model} is not in the cache; headwise models get {model}")
    output = folder / "out.json"
    words = ["inspect", model, "--corpus", str(DATA / corpus)]
    assert main([*words, "--format", "json", "--output", str(output)]) == 0
    found = json.loads(output.read_text(encoding="utf-8"))["alignment"]
    return {each["head"]: each for each in found}


@pytest.mark.slow
def test_rxnmappers_head_5_finds_the_atoms(tmp_path: Path) -> None:
    heads = aligned("rxnmapper", "reactions.jsonl", tmp_path)
    assert heads["L10H5"]["accuracy"] >= 0.95
    best = max(heads, key=lambda head: heads[head]["accuracy"])
    assert best.endswith("H5")


@pytest.mark.slow
def test_anarciis_heads_look_at_their_own_residue_and_at_the_next(tmp_path: Path) -> None:
    own = aligned("anarcii", "antibodies_own.jsonl", tmp_path)
    following = aligned("anarcii", "antibodies_next.jsonl", tmp_path)
    assert own["cross.L1H0"]["mean_weight"] >= 0.7
    assert following["cross.L1H2"]["mean_weight"] >= 0.6
    assert set(own) == {f"cross.L{layer}H{head}" for layer in range(2) for head in range(4)}


@pytest.mark.slow
def test_whispers_heads_listen_to_the_word_they_tell(tmp_path: Path) -> None:
    heads = aligned("whisper", "speech.jsonl", tmp_path)
    assert sum(each["accuracy"] >= 0.8 for each in heads.values()) >= 5
    assert heads["cross.L3H2"]["accuracy"] >= 0.9
