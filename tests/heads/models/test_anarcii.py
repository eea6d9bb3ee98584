"""ANARCII from its pickle: only tensors are read, and the model numbers residues."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from headwise.errors import BadFile
from headwise.heads.models.anarcii import (
    FILES,
    NAME,
    NUMBERS,
    RESIDUES,
    Anarcii,
    Sizes,
    convert,
    open_folder,
)
from headwise.heads.models.load import load
from headwise.verify.oracle.tolerance import accept

CONFIG = {"INPUT_DIM": 25, "OUTPUT_DIM": 136, "HID_DIM": 12, "LAYERS": 2, "HEADS": 3}


def written(folder: Path, weights: object) -> Path:
    (folder / f"{NAME}.json").write_text(json.dumps(CONFIG))
    torch.save(weights, folder / f"{NAME}.pt")
    return folder


@pytest.fixture
def network() -> Anarcii:
    torch.manual_seed(1)
    return Anarcii(Sizes.of(CONFIG), None).eval()


def test_what_is_kept_is_opened_again(tmp_path: Path, network: Anarcii) -> None:
    convert(written(tmp_path, network.state_dict()))
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(FILES)
    model, residues, numbers = open_folder(tmp_path)
    ids = residues("EVQ LBX", return_tensors="pt")["input_ids"]
    assert residues.convert_ids_to_tokens(ids[0].tolist()) == ["<SOS>", *"EVQLXX", "<EOS>"]
    with torch.no_grad():
        mine = network(ids, ids[:, :5]).logits
        assert torch.equal(model(ids, ids[:, :5]).logits, mine)
    assert mine.shape == (1, 5, 136)
    assert numbers("<SOS> H 1 2 X")["input_ids"] == [1, 133, 4, 5, 132]
    assert (len(RESIDUES), len(NUMBERS)) == (25, 136)
    assert model.config.is_encoder_decoder


def test_a_later_token_changes_nothing_and_padding_neither(network: Anarcii) -> None:
    ids = torch.tensor([[1, 5, 6, 7, 2]])
    padded = torch.nn.functional.pad(ids, (0, 3))
    target = torch.tensor([[1, 133, 4, 5]])
    with torch.no_grad():
        plain = network(ids, target).logits
        changed = network(ids, torch.tensor([[1, 133, 4, 9]])).logits
        with_padding = network(padded, target).logits
        twin = Anarcii(Sizes.of(CONFIG), None).double().eval()
        twin.load_state_dict({k: v.double() for k, v in network.state_dict().items()})
        oracle = twin(ids, target).logits
    accept(changed[:, :3], plain[:, :3], oracle[:, :3])
    accept(with_padding, plain, oracle)


def test_what_it_writes_is_its_own_best_word_each_time(network: Anarcii) -> None:
    ids = torch.tensor([[1, 5, 6, 7, 8, 2]])
    written_ids = network.decoded(ids)
    assert written_ids.shape == ids.shape
    with torch.no_grad():
        best = network(ids, written_ids).logits.argmax(-1)
    assert torch.equal(best[:, :-1], written_ids[:, 1:])


def test_a_pickle_that_does_more_than_hold_tensors_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path(tmp_path / "ran").touch, ())

    with pytest.raises(pickle.UnpicklingError):
        convert(written(tmp_path, {"a": Evil()}))
    assert not (tmp_path / "ran").exists()


def test_what_is_no_dictionary_of_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="expected a dictionary of tensors; download it"):
        convert(written(tmp_path, {"a": 3}))


@pytest.mark.slow
def test_trastuzumab_is_numbered_as_imgt_numbers_it() -> None:
    """Kind of chain, then numbers: IMGT leaves 10 and 73 out of a heavy chain's framework."""
    from headwise.heads.models import is_cached, model_named

    if not is_cached(model_named("anarcii")):
        pytest.skip("anarcii is not in the cache; headwise models get anarcii")
    loaded = load("anarcii")
    ids = loaded.tokenizer("EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS", return_tensors="pt")["input_ids"]  # fmt: skip # noqa: E501
    said = loaded.target_tokenizer.convert_ids_to_tokens(loaded.model.decoded(ids)[0].tolist())
    assert said[:2] == ["<SOS>", "H"]
    assert said[2:] == [str(n) for n in range(1, 129) if n not in (10, 31, 32, 33, 34, 60, 61, 73)]
