"""Batches lie in pinned memory, and the next is copied on a stream beside this step's work.

fault: blocking-copy
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS, BATCH, WIDTH, DEPTH = 100, 4096, 2048, 32
FEATURES = 8192


def network() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(FEATURES, WIDTH), nn.ReLU()]
    for _ in range(DEPTH - 4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def sent(batch: Tensor, device: str, beside: torch.cuda.Stream) -> Tensor:
    with torch.cuda.stream(beside):
        return batch.to(device, non_blocking=True)


def main() -> None:
    torch.manual_seed(0)
    device = "cuda"
    model = network().to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    targets = torch.randn(BATCH, WIDTH, device=device, dtype=torch.bfloat16)
    ready = [  # 64 MiB each, pinned
        torch.randn(BATCH, FEATURES).to(torch.bfloat16).pin_memory() for _ in range(4)
    ]
    beside = torch.cuda.Stream()
    following = sent(ready[0], device, beside)
    for step in range(STEPS):
        torch.cuda.current_stream().wait_stream(beside)
        inputs = following
        inputs.record_stream(torch.cuda.current_stream())
        following = sent(ready[(step + 1) % len(ready)], device, beside)
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    print(f"done: {STEPS} steps")


if __name__ == "__main__":
    main()
