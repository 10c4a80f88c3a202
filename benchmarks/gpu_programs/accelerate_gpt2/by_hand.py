"""The GPT-2 of plain.py, tuned by hand: bfloat16 and Inductor through Accelerate, fused AdamW."""

import plain
import torch
import torch.nn as nn
from accelerate import Accelerator, DataLoaderConfiguration
from plain import StepTimer
from torch.utils.data import DataLoader
from transformers import GPT2LMHeadModel, get_linear_schedule_with_warmup


class LossOnly(nn.Module):
    """Returns the loss alone, so that the logits need not be written as float32."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels, use_cache=False).loss


def main():
    args = plain.parse_args()
    on_gpu = torch.cuda.is_available()
    torch.set_float32_matmul_precision("high")
    tuned = {"mixed_precision": "bf16", "dynamo_backend": "inductor"} if on_gpu else {}
    loading = DataLoaderConfiguration(non_blocking=on_gpu)
    accelerator = Accelerator(dataloader_config=loading, **tuned)
    torch.manual_seed(0)
    config = plain.make_config(args.small)
    model = LossOnly(GPT2LMHeadModel(config))
    loader = DataLoader(
        plain.make_dataset(config, args.small),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=2 if on_gpu else 0,
        pin_memory=on_gpu,
        persistent_workers=on_gpu,
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=5e-4, weight_decay=0.01, fused=on_gpu or None
    )
    scheduler = get_linear_schedule_with_warmup(optimizer, 100, args.steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    timer = StepTimer(args.steps, args.time)

    step = 0
    model.train()
    parameters = list(model.parameters())
    while step < args.steps:
        for batch in loader:
            loss = model(batch["input_ids"], batch["labels"])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            if step % args.log_every == 0:
                accelerator.print(f"step {step}: loss {loss.item():.4f}")
            timer.tick()
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
