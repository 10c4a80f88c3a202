"""LBFGS: forward and backward happen inside `optimizer.step(closure)`, several times."""

import torch
import torch.nn.functional as F
from nets import CLASSES, WIDTH, mlp
from torch import Tensor
from truth import Truth

torch.manual_seed(0)
truth = Truth()
model = mlp()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
inputs, labels = torch.randn(16, WIDTH), torch.randint(0, CLASSES, (16,))


def closure() -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    truth.forward(16)
    loss.backward()
    truth.backward(loss)
    return loss


for _ in range(8):
    optimizer.step(closure)
    truth.step()
truth.tell()
