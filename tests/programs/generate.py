"""Text written by a language model, a call a token: the framework's loop, no optimizer."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging
from truth import Truth

logging.set_verbosity_error()
torch.manual_seed(0)
truth = Truth()
config = GPT2Config(
    vocab_size=64, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=None
)
model = GPT2LMHeadModel(config).eval()
prompt = torch.randint(0, 64, (2, 4))
written = model.generate(prompt, max_new_tokens=24, do_sample=False, pad_token_id=0)
for _ in range(written.shape[1] - prompt.shape[1]):
    truth.forward()
    truth.step(optimizers=0)
print(written.tolist())
truth.tell()
