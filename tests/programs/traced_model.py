"""A model traced by torch.jit, answering in a loop of its own batches."""

import torch
from nets import WIDTH, Blocks
from truth import Truth

torch.manual_seed(0)
truth = Truth()
model = torch.jit.trace(Blocks().eval(), torch.randn(4, WIDTH))
total = 0.0
with torch.inference_mode():
    for _ in range(20):
        total += model(torch.randn(4, WIDTH)).sum().item()
        truth.forward(4)
        truth.step(optimizers=0)
print(total)
truth.tell()
