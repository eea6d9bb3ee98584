"""Capture of models whose input is an image or speech."""

import torch
from torch import Tensor, nn

import headwise as hw
from headwise.heads.capture import Recorder
from headwise.heads.names import Head, Layer
from headwise.verify.oracle.tolerance import accept


def _larger(model: nn.Module) -> nn.Module:
    torch.manual_seed(8)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.3)
    return model.eval()


def _vit(implementation: str) -> nn.Module:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=13,
        image_size=15, patch_size=5, attn_implementation=implementation,
    )  # fmt: skip
    return _larger(ViTModel(config, add_pooling_layer=False))


def _whisper(implementation: str) -> nn.Module:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=31, num_mel_bins=5, d_model=12, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=13,
        decoder_ffn_dim=13, max_source_positions=17, max_target_positions=19, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        attn_implementation=implementation,
    )  # fmt: skip
    return _larger(WhisperModel(config))


def _run(model: nn.Module, inputs: dict[str, Tensor], heads: list[Head]) -> tuple[Tensor, Recorder]:
    with torch.no_grad():
        before = model(**inputs).last_hidden_state
        with hw.capture(model, heads=heads) as seen:
            during = model(**inputs).last_hidden_state
    assert torch.equal(before, during)
    return during, seen


def _cast(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def test_patches_of_a_picture() -> None:
    model, inputs = _vit("sdpa"), {"pixel_values": torch.randn(2, 3, 15, 15)}
    heads = [Head(Layer("", layer), n) for layer in range(2) for n in range(3)]
    _, seen = _run(model, inputs, heads)
    plain = _vit("eager")(**inputs, output_attentions=True).attentions
    oracle = _vit("eager").double()(**_cast(inputs), output_attentions=True).attentions
    for each in heads:
        layers = (plain[each.layer.number], oracle[each.layer.number])
        accept(seen.weights[each], *(layer[:, each.number].detach() for layer in layers))
    assert seen.statistics.layers[Layer("", 0)].queries == 2 * 10  # nine patches and [CLS]


def test_speech_and_the_words_that_look_at_it() -> None:
    inputs = {
        "input_features": torch.randn(1, 5, 34),
        "decoder_input_ids": torch.randint(3, 31, (1, 6)),
    }
    head = Head(Layer("cross", 1), 2)
    _, seen = _run(_whisper("sdpa"), inputs, [head])
    plain = _whisper("eager")(**inputs, output_attentions=True).cross_attentions[1][:, 2]
    exact = _whisper("eager").double()(**_cast(inputs), output_attentions=True)
    accept(seen.weights[head], plain.detach(), exact.cross_attentions[1][:, 2].detach())
    assert seen.weights[head].shape == (1, 6, 17)
    assert {str(layer) for layer in seen.statistics.layers} == {
        f"{part}.L{n}" for part in ("encoder", "decoder", "cross") for n in range(2)
    }


def test_speech_is_put_into_words_the_same() -> None:
    from transformers import WhisperForConditionalGeneration

    whole = WhisperForConditionalGeneration(_whisper("sdpa").config).eval()
    whole.model.load_state_dict(_whisper("sdpa").state_dict())
    whole.generation_config.update(
        max_new_tokens=5, suppress_tokens=None, no_timestamps_token_id=30
    )
    features = torch.randn(1, 5, 34)
    before = whole.generate(features)
    with hw.capture(whole) as seen:
        during = whole.generate(features)
    assert torch.equal(before, during)
    assert len(seen.statistics.layers) == 6
