"""The embedded policy: a Qwen3 of about 0.1 million parameters with a word-level tokenizer, in Hugging Face form."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from components.policy.base import PolicyParams

transformers_logging.disable_progress_bar()  # a checkpoint of this size needs none

END, PAD = "<|end|>", "<|pad|>"
ROLES = ["<|user|>", "<|assistant|>", "<|tool|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|> ' + message.content + ' <|end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}"
)


def build_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer with a chat template for the roles user, assistant and tool."""
    vocabulary = {word: index for index, word in enumerate([PAD, END, "<|unknown|>", *ROLES, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token="<|unknown|>",
        extra_special_tokens=ROLES,
        chat_template=CHAT_TEMPLATE,
    )


def build_model(settings: PolicyParams, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights.

    The initialiser range is 0.1: at 64 hidden units the usual 0.02 starts so close to zero that the default warm-up
    ends at a sampled accuracy of 0.14 instead of 0.34.
    """
    torch.manual_seed(settings.warmup.seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=3 * settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=settings.hidden // 4,
        max_position_embeddings=512,
        initializer_range=0.1,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)
