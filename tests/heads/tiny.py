"""Tiny models with random weights, one for each family; nothing is downloaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Make = Callable[..., nn.Module]


def _made(model: nn.Module) -> nn.Module:
    """Larger weights than a fresh model's, so that heads differ from each other."""
    torch.manual_seed(11)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.3)
            elif name.endswith("sinks"):
                weight.normal_(0.0, 1.0)
    return model.eval()


def bert(implementation: str = "sdpa") -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=31,
        hidden_size=21,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=13,
        max_position_embeddings=37,
        attn_implementation=implementation,
    )
    return _made(BertModel(config, add_pooling_layer=False))


def gpt2(implementation: str = "sdpa") -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=31, n_embd=21, n_layer=2, n_head=3, n_positions=37,
        bos_token_id=1, eos_token_id=2, attn_implementation=implementation,
    )  # fmt: skip
    return _made(GPT2Model(config))


def llama(implementation: str = "sdpa") -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=10, intermediate_size=13, max_position_embeddings=37,
        attn_implementation=implementation,
    )  # fmt: skip
    return _made(LlamaModel(config))


def mistral(implementation: str = "sdpa") -> nn.Module:
    from transformers import MistralConfig, MistralModel

    config = MistralConfig(
        vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=3, head_dim=10, intermediate_size=13, max_position_embeddings=37,
        sliding_window=5, attn_implementation=implementation,
    )  # fmt: skip
    return _made(MistralModel(config))


def gemma2(implementation: str = "eager") -> nn.Module:
    from transformers import Gemma2Config, Gemma2Model

    config = Gemma2Config(
        vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=3, head_dim=10, intermediate_size=13, max_position_embeddings=37,
        sliding_window=5, attn_logit_softcapping=2.0, attn_implementation=implementation,
    )  # fmt: skip
    return _made(Gemma2Model(config))


def gpt_oss(implementation: str = "eager") -> nn.Module:
    from transformers import GptOssConfig, GptOssModel

    config = GptOssConfig(
        vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=3, head_dim=10, intermediate_size=13, max_position_embeddings=37,
        sliding_window=5, num_local_experts=2, num_experts_per_tok=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        experts_implementation="eager",
        attn_implementation=implementation,
    )  # fmt: skip
    return _made(GptOssModel(config))


def albert(implementation: str = "sdpa") -> nn.Module:
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        vocab_size=31, embedding_size=7, hidden_size=21, num_hidden_layers=5,
        num_attention_heads=3, intermediate_size=13, max_position_embeddings=37,
        attn_implementation=implementation,
    )  # fmt: skip
    return _made(AlbertModel(config, add_pooling_layer=False))


def bart(implementation: str = "sdpa") -> nn.Module:
    from transformers import BartConfig, BartModel

    config = BartConfig(
        vocab_size=31, d_model=21, encoder_layers=2, decoder_layers=3,
        encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=13,
        decoder_ffn_dim=11, max_position_embeddings=37, attn_implementation=implementation,
    )  # fmt: skip
    return _made(BartModel(config))


def t5(implementation: str = "sdpa") -> nn.Module:
    from transformers import T5Config, T5Model

    config = T5Config(
        vocab_size=31, d_model=21, d_kv=7, d_ff=13, num_layers=2, num_decoder_layers=3,
        num_heads=3, attn_implementation=implementation,
    )  # fmt: skip
    return _made(T5Model(config))


ONE_STACK: tuple[Make, ...] = (bert, gpt2, llama, mistral, albert)
PLAIN_ONLY: tuple[Make, ...] = (gemma2, gpt_oss)
TWO_STACKS: tuple[Make, ...] = (bart, t5)


HOSTILE = ("</script>", "<b>bold</b>", "\x1b[31mred", "\u202egnol", "a|b`c", "${x}$")
"""Tokens that act on a page, a terminal or a table unless they are escaped."""

WORDS = ("the", "cat", "sat", "on", "a", "mat", "我", "爱", "你", *HOSTILE)


def tokenizer(*, special: bool = True) -> Any:
    """Splits at spaces; with [CLS] and [SEP] around the text, or without any special token."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] if special else ["[UNK]"]
    numbers = {word: number for number, word in enumerate([*names, *WORDS])}
    made = Tokenizer(WordLevel(numbers, unk_token=names[special]))
    made.pre_tokenizer = Split(" ", "removed")
    if not special:
        return PreTrainedTokenizerFast(tokenizer_object=made)
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {f"{name[1:-1].lower()}_token": name for name in names}
    return PreTrainedTokenizerFast(tokenizer_object=made, **named)


def saved(folder: Path, make: Make = bert, *, special: bool = True) -> Path:
    """A tiny model and its tokenizer in a directory, as Hugging Face writes it."""
    make().save_pretrained(folder)
    tokenizer(special=special).save_pretrained(folder)
    return folder
