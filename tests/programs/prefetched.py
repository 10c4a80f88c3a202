"""The next batch is fetched between forward and backward, and some batches fail and are skipped."""

import torch
import torch.nn.functional as F
from nets import labelled, mlp
from torch.utils.data import DataLoader
from truth import Truth

torch.manual_seed(0)
truth = Truth()
model = mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(DataLoader(labelled(96), batch_size=4))
batch = next(batches, None)
at = 0
while batch is not None:
    inputs, labels = batch
    at += 1
    try:
        loss = F.cross_entropy(model(inputs[:, :7] if at % 6 == 0 else inputs), labels)
    except RuntimeError:  # shapes do not match: as many a script survives a bad sample
        truth.forward(len(inputs))
        batch = next(batches, None)
        continue
    truth.forward(len(inputs))
    batch = next(batches, None)
    optimizer.zero_grad()
    loss.backward()
    truth.backward(loss)
    optimizer.step()
    truth.step()
truth.tell()
