"""Accelerate: prepared model, optimizer and loader, accumulation of two."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from nets import labelled, mlp
from torch.utils.data import DataLoader
from truth import Truth

torch.manual_seed(0)
truth = Truth()
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = mlp()
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters()), DataLoader(labelled(80), batch_size=4)
)
for _ in range(2):
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(inputs), labels)
            truth.forward(len(inputs))
            accelerator.backward(loss)
            truth.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            truth.step()
truth.tell()
