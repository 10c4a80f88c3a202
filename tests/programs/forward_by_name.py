"""`model.forward(x)` called by name, which no hook sees; the optimizer still marks the steps."""

import torch
import torch.nn.functional as F
from nets import labelled, mlp
from torch.utils.data import DataLoader
from truth import Truth

torch.manual_seed(0)
truth = Truth()
model = mlp()
optimizer = torch.optim.RMSprop(model.parameters())
for inputs, labels in DataLoader(labelled(80), batch_size=4):
    loss = F.cross_entropy(model.forward(inputs), labels)
    truth.samples += len(inputs)
    optimizer.zero_grad()
    loss.backward()
    truth.backward(loss)
    optimizer.step()
    truth.step()
truth.tell()
