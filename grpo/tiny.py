"""The tiny model: an `Olmo2ForCausalLM` of 0.92 million parameters and its own tokenizer, made from nothing.

The class is the same as OLMo-2-0425-1B's, so the code that trains one trains the other, and transformers and vLLM
load either as a plain folder. `grpo warmup` (grpo/warmup.py) trains the copy that is committed in data/tiny.

The tokenizer is a byte-level BPE of 512 tokens: any text comes back from its ids unchanged. Digits stay apart, so
that 17 is two tokens whatever stands around it. `<think>`, `</think>`, `<answer>` and `</answer>` are one token
each, but not "special" ones, which decoding would leave out and no grader would see. Padding and end of sequence
are two different tokens, and none is put before a text.

    >>> tokenizer = build_tokenizer(["Tom has 3 pens."])
    >>> tokenizer.decode(tokenizer.encode("<think> 12+7=19"))
    '<think> 12+7=19'
    >>> build_model(tokenizer).num_parameters()
    919680
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 512
CONTEXT = 512
PAD, EOS = "<|pad|>", "<|eos|>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def build_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Train the tokenizer on texts; the same texts in the same order give the same tokenizer.

    Args:
        texts: what the merges are learned from. Tags in it are left out of that: they have tokens of their own.
        vocab_size: tokens in all: pad, eos, 256 bytes, merges and the four tags.

    Returns:
        A tokenizer of at most `vocab_size` tokens (fewer if the texts have too little to merge).

    Raises:
        ValueError: vocab_size is too small for the bytes, pad, eos and the tags.
    """
    smallest = 256 + 2 + len(TAGS)
    if vocab_size < smallest:
        raise ValueError(f"vocab_size={vocab_size} must be at least {smallest} (bytes, pad, eos and tags)")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAGS),
        special_tokens=[PAD, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tag = re.compile("|".join(map(re.escape, TAGS)))
    bpe.train_from_iterator((part for text in texts for part in tag.split(text)), trainer)
    # normalized=False: found in the raw text, before anything splits it.
    bpe.add_tokens([AddedToken(name, special=False, normalized=False) for name in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=EOS,
        model_max_length=CONTEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast,
    hidden_size: int = 128,
    num_layers: int = 4,
    num_heads: int = 4,
    intermediate_size: int = 384,
    seed: int = 0,
) -> Olmo2ForCausalLM:
    """Return a model with random weights for this tokenizer, in float32, with tied embeddings.

    Args:
        tokenizer: gives the pad and eos ids. The vocabulary is at least VOCAB_SIZE.
        hidden_size: width; hidden_size / num_heads should be 32 at least, which vLLM's attention on CPUs needs.
        num_layers: number of blocks.
        num_heads: attention heads; must divide hidden_size.
        intermediate_size: width of the feed-forward layers.
        seed: of the weights. torch's global generator is left as it was.

    Raises:
        ValueError: num_heads does not divide hidden_size.
    """
    if hidden_size % num_heads:
        raise ValueError(f"hidden_size={hidden_size} must be a multiple of num_heads={num_heads}")
    config = Olmo2Config(
        vocab_size=max(VOCAB_SIZE, len(tokenizer)),
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        intermediate_size=intermediate_size,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        use_cache=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Olmo2ForCausalLM(config)
