"""Two trainings in a row, each with a model and optimizer of its own; batches by next(iter())."""

import torch
import torch.nn.functional as F
from nets import labelled, mlp
from torch.utils.data import DataLoader
from truth import Truth

torch.manual_seed(0)
truth = Truth()
for _ in range(2):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(labelled(64), batch_size=4, shuffle=True)
    for _ in range(12):
        inputs, labels = next(iter(loader))
        loss = F.cross_entropy(model(inputs), labels)
        truth.forward(len(inputs))
        optimizer.zero_grad()
        loss.backward()
        truth.backward(loss)
        optimizer.step()
        truth.step()
truth.tell()
