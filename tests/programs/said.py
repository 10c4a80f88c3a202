"""A program that says its steps and regions itself; two optimizer steps in each."""

import torch
import torch.nn.functional as F
from nets import CLASSES, WIDTH, mlp
from truth import Truth

import ridgeline

torch.manual_seed(0)
truth = Truth()
model = mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    for _ in range(2):
        with ridgeline.region("make a batch"):
            inputs, labels = torch.randn(4, WIDTH), torch.randint(0, CLASSES, (4,))
        loss = F.cross_entropy(model(inputs), labels)
        truth.forward(4)
        optimizer.zero_grad()
        loss.backward()
        truth.backward(loss)
        optimizer.step()
    ridgeline.step()
    truth.step(optimizers=2)
truth.tell()
