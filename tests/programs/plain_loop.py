"""The loop of every tutorial: DataLoader, loss module, zero_grad, backward, step; two epochs."""

import torch
from nets import labelled, mlp
from torch import nn
from torch.utils.data import DataLoader
from truth import Truth

torch.manual_seed(0)
truth = Truth()
model = mlp()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(labelled(46), batch_size=4, shuffle=True)
for epoch in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        truth.forward(len(inputs))
        loss = criterion(outputs, labels)
        loss.backward()
        truth.backward(loss)
        optimizer.step()
        truth.step()
    print(f"epoch {epoch} loss {loss.item()!r}")
truth.tell()
