"""Train GPT-2 small of transformers with an Accelerate loop."""

import argparse
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

sys.path.append(str(Path(__file__).resolve().parents[1]))
from step_timer import StepTimer


class TokenBlocks(Dataset):
    def __init__(self, blocks, block_size, vocab_size):
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, vocab_size, (blocks, block_size), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def make_config(small):
    if small:
        return GPT2Config(vocab_size=256, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    return GPT2Config()


def make_dataset(config, small):
    return TokenBlocks(64 if small else 4096, 32 if small else 512, config.vocab_size)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--small", action="store_true", help="a tiny model, for a smoke test")
    parser.add_argument("--time", action="store_true", help="print milliseconds a step at the end")
    parser.add_argument("--log-every", type=int, default=50)
    return parser.parse_args()


def main():
    args = parse_args()
    accelerator = Accelerator()
    torch.manual_seed(0)
    config = make_config(args.small)
    model = GPT2LMHeadModel(config)
    loader = DataLoader(
        make_dataset(config, args.small), batch_size=args.batch_size, shuffle=True, drop_last=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    scheduler = get_linear_schedule_with_warmup(optimizer, 100, args.steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    timer = StepTimer(args.steps, args.time)

    step = 0
    model.train()
    while step < args.steps:
        for batch in loader:
            outputs = model(**batch)
            loss = outputs.loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if step % args.log_every == 0:
                accelerator.print(f"step {step}: loss {loss.item():.4f}")
            timer.tick()
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
