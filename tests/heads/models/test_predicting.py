"""A model is loaded with the language-model head with which it was saved."""

from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.errors import BadFile
from headwise.heads.models.load import load
from tests.heads import tiny
from tests.heads.ablation.families import made
from tests.heads.tiny import tokenizer


def saved(folder: Path, kind: str, make: tiny.Make) -> nn.Module:
    import transformers

    model = made(getattr(transformers, kind)(make().config))
    model.save_pretrained(folder)
    tokenizer(special=False).save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("LlamaForCausalLM", tiny.llama),
        ("GPT2LMHeadModel", tiny.gpt2),
        ("BartForConditionalGeneration", tiny.bart),
    ],
)
def test_its_logits_are_those_of_the_model_that_was_saved(
    tmp_path: Path, kind: str, make: tiny.Make
) -> None:
    model = saved(tmp_path, kind, make)
    found = load(str(tmp_path), predicting=True).model
    ids = {"input_ids": torch.tensor([[3, 5, 7]])}
    if make is tiny.bart:
        ids["decoder_input_ids"] = torch.tensor([[2, 4]])
    with torch.no_grad():
        assert torch.equal(found(**ids).logits, model(**ids).logits)
    assert not found.training
    assert not hasattr(load(str(tmp_path)).model, "lm_head")


@pytest.mark.parametrize(("kind", "make"), [("BertForMaskedLM", tiny.bert)])
def test_what_predicts_no_next_token_is_loaded_bare(
    tmp_path: Path, kind: str, make: tiny.Make
) -> None:
    saved(tmp_path, kind, make)
    assert type(load(str(tmp_path), predicting=True).model).__name__ == "BertModel"


def test_a_model_that_was_saved_bare_is_loaded_so(tmp_path: Path) -> None:
    tiny.llama().save_pretrained(tmp_path)
    tokenizer(special=False).save_pretrained(tmp_path)
    assert type(load(str(tmp_path), predicting=True).model).__name__ == "LlamaModel"


def test_a_projection_that_is_missing_is_not_made_up(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    saved(tmp_path, "LlamaForCausalLM", tiny.llama)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadFile, match=r"lacks 1 weights \(lm_head.weight\); save the whole model"):
        load(str(tmp_path), predicting=True)
    load(str(tmp_path))
