"""The ViT of plain.py, tuned by hand: bfloat16, torch.compile, fused AdamW, images kept on the GPU.

The same index always gives the same image, so the data set is made once and stays on the device:
the batches are those of plain.py.
"""

import os

import plain
import torch
import torch.nn as nn
from plain import StepTimer
from torch.utils.data import DataLoader

FILLING_BATCH = 64


def resident(dataset, device):
    """Every image and label of `dataset`, in order, on `device`."""
    loader = DataLoader(
        dataset,
        batch_size=FILLING_BATCH,
        num_workers=min(16, os.cpu_count()),
        generator=torch.Generator(),  # the default generator is left as plain.py has it
    )
    images, labels = zip(*((x.to(device), y.to(device)) for x, y in loader), strict=True)
    return torch.cat(images), torch.cat(labels)


def main():
    args = plain.parse_args()
    if args.small:
        args.batch_size = 4
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"

    images, labels = resident(plain.make_dataset(args.small), device)
    index_loader = DataLoader(
        range(len(images)), batch_size=args.batch_size, shuffle=True, drop_last=True
    )
    model = plain.build(args.small).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, weight_decay=0.05, fused=on_gpu or None
    )
    timer = StepTimer(args.steps, args.time)

    def loss_of(x, y):
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            return criterion(model(x), y)

    if on_gpu:
        loss_of = torch.compile(loss_of)

    step = 0
    model.train()
    while step < args.steps:
        for indices in index_loader:
            if on_gpu:
                indices = indices.pin_memory().to(device, non_blocking=True)
            loss = loss_of(images[indices], labels[indices])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % args.log_every == 0:
                print(f"step {step}: loss {loss.item():.4f}")
            timer.tick()
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
