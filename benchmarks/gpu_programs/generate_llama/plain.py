"""Answer requests with `model.generate` of a Llama of 1.1 billion parameters, greedily."""

import argparse
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.append(str(Path(__file__).resolve().parents[1]))
from step_timer import StepTimer


def make_config(small):
    if small:
        return LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            eos_token_id=None,
            pad_token_id=0,
        )
    return LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=2048,
        eos_token_id=None,
        pad_token_id=0,
    )


def build(config, device):
    with torch.device(device):
        model = LlamaForCausalLM(config)
    # A trained model is sure of most of its tokens; random weights are sure of none. With these
    # embeddings each token is followed by a fixed other one.
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding.normal_(std=4.0)
        model.lm_head.weight.copy_(embedding.roll(1, 0) * 0.005)
    return model.eval()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="requests to answer")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--small", action="store_true", help="a tiny model, for a smoke test")
    parser.add_argument("--time", action="store_true", help="print milliseconds a step at the end")
    parser.add_argument("--log-every", type=int, default=50)
    args = parser.parse_args()
    if args.small:
        args.prompt, args.new_tokens = 16, 8
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = make_config(args.small)
    model = build(config, device)
    prompts = torch.Generator().manual_seed(0)
    timer = StepTimer(args.steps, args.time)

    for step in range(args.steps):
        shape = (args.batch_size, args.prompt)
        input_ids = torch.randint(0, config.vocab_size, shape, generator=prompts).to(device)
        output = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=args.new_tokens,
            do_sample=False,
        )
        answer = output[:, args.prompt :]
        if step % args.log_every == 0:
            print(f"request {step}: {answer.shape[1]} tokens, checksum {answer.sum().item()}")
        timer.tick()


if __name__ == "__main__":
    main()
