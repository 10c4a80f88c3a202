"""Language models of the matrix, through Hugging Face transformers from a config (no download)."""

import torch
from torch import Tensor, nn

from tests.models.row import Built, attention, linear

BATCH, TOKENS = 2, 64


class Logits(nn.Module):
    """Calls a causal LM with the 4-D mask spelled out.

    Given none, transformers reads data to decide whether it may skip the mask (`.item()`), which a
    tensor without data cannot answer.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        batch, tokens = ids.shape
        mask = torch.full((tokens, tokens), float("-inf"), device=ids.device).triu(1)
        mask = mask.expand(batch, 1, tokens, tokens)
        return self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits


GPT2_WIDTH, GPT2_HEADS, GPT2_DEPTH, GPT2_VOCABULARY = 192, 4, 2, 997


def gpt2(implementation: str) -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=GPT2_VOCABULARY,
        n_positions=TOKENS,
        n_embd=GPT2_WIDTH,
        n_layer=GPT2_DEPTH,
        n_head=GPT2_HEADS,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=implementation,
    )
    ids = torch.randint(0, GPT2_VOCABULARY, (BATCH, TOKENS))
    return Logits(GPT2LMHeadModel(config)), (ids,)


GPT2_MACS = GPT2_DEPTH * (
    linear(BATCH * TOKENS, GPT2_WIDTH, 4 * GPT2_WIDTH)  # q, k, v and the way out
    + attention(BATCH, TOKENS, TOKENS, GPT2_WIDTH)
    + 2 * linear(BATCH * TOKENS, GPT2_WIDTH, 4 * GPT2_WIDTH)
) + linear(BATCH * TOKENS, GPT2_WIDTH, GPT2_VOCABULARY)


LLAMA_HEADS, LLAMA_KV_HEADS, LLAMA_HEAD_WIDTH = 4, 2, 48
LLAMA_WIDTH, LLAMA_HIDDEN, LLAMA_DEPTH, LLAMA_VOCABULARY = 192, 448, 2, 997


def llama() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=LLAMA_VOCABULARY,
        hidden_size=LLAMA_WIDTH,
        intermediate_size=LLAMA_HIDDEN,
        num_hidden_layers=LLAMA_DEPTH,
        num_attention_heads=LLAMA_HEADS,
        num_key_value_heads=LLAMA_KV_HEADS,
        max_position_embeddings=TOKENS,
        attn_implementation="sdpa",
    )
    ids = torch.randint(0, LLAMA_VOCABULARY, (BATCH, TOKENS))
    return Logits(LlamaForCausalLM(config)), (ids,)


LLAMA_MACS = LLAMA_DEPTH * (
    2 * linear(BATCH * TOKENS, LLAMA_WIDTH, LLAMA_HEADS * LLAMA_HEAD_WIDTH)  # q, out
    + 2 * linear(BATCH * TOKENS, LLAMA_WIDTH, LLAMA_KV_HEADS * LLAMA_HEAD_WIDTH)  # k, v
    + attention(BATCH, TOKENS, TOKENS, LLAMA_HEADS * LLAMA_HEAD_WIDTH)
    + 3 * linear(BATCH * TOKENS, LLAMA_WIDTH, LLAMA_HIDDEN)
) + linear(BATCH * TOKENS, LLAMA_WIDTH, LLAMA_VOCABULARY)
