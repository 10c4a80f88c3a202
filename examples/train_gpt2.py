"""GPT-2 124M trained on made-up text: plain PyTorch, float32, attention written out.

Nearly all of a step is matrix products, and by PyTorch's defaults they are strictly float32: on a
GPU with tensor cores that leaves most of its arithmetic unused.

    python examples/train_gpt2.py --steps 50
    ridgeline run examples/train_gpt2.py --steps 50
    ridgeline run examples/train_gpt2.py --small --steps 40      on a CPU, in seconds
"""

import argparse

import torch
import torch.nn.functional as F
from gpt2 import GPT2, Config
from torch import Tensor

SMALL = Config(vocabulary=512, context=64, width=128, heads=4, depth=2, fused_attention=False)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--small", action="store_true", help="two layers, 64 tokens")
    return parser.parse_args()


def batch_of(text: Tensor, batch: int, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random places of the text, and what follows each token there."""
    starts = torch.randint(0, len(text) - tokens - 1, (batch,)).tolist()
    inputs = torch.stack([text[at : at + tokens] for at in starts])
    targets = torch.stack([text[at + 1 : at + tokens + 1] for at in starts])
    return inputs.to(device), targets.to(device)


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    name = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    config = SMALL if args.small else Config(fused_attention=False)
    text = torch.randint(0, config.vocabulary, (1_000_000,))
    model = GPT2(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
    model.train()
    for step in range(args.steps):
        inputs, targets = batch_of(text, args.batch, config.context, device)
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    print(f"done: {args.steps} steps of {args.batch} x {config.context} tokens")


if __name__ == "__main__":
    main()
