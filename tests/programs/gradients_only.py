"""Meta-learning: inner steps by torch.autograd.grad and functional_call, one outer optimizer."""

import torch
import torch.nn.functional as F
from nets import CLASSES, WIDTH, mlp
from torch.func import functional_call
from truth import Truth

torch.manual_seed(0)
truth = Truth()
model = mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(20):
    inputs, labels = torch.randn(8, WIDTH), torch.randint(0, CLASSES, (8,))
    weights = dict(model.named_parameters())
    loss = F.cross_entropy(functional_call(model, weights, (inputs[:4],)), labels[:4])
    slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    moved = {name: w - 0.1 * s for (name, w), s in zip(weights.items(), slopes, strict=True)}
    loss = F.cross_entropy(functional_call(model, moved, (inputs[4:],)), labels[4:])
    truth.forward(8, calls=2)
    optimizer.zero_grad()
    loss.backward()
    truth.backward(loss)
    optimizer.step()
    truth.step()
truth.tell()
