"""Three epochs, each followed by an evaluation of the same model; and one before the first."""

import torch
import torch.nn.functional as F
from nets import labelled, mlp
from torch.utils.data import DataLoader
from truth import Truth

torch.manual_seed(0)
truth = Truth()
model = mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
training = DataLoader(labelled(28), batch_size=4, shuffle=True)
held_out = DataLoader(labelled(24), batch_size=8)


@torch.no_grad()
def accuracy() -> float:
    model.eval()
    right = 0
    for inputs, labels in held_out:
        right += int((model(inputs).argmax(dim=1) == labels).sum())
        truth.evaluation()
    model.train()
    return right / 24


print(accuracy())
for _ in range(3):
    for inputs, labels in training:
        loss = F.cross_entropy(model(inputs), labels)
        truth.forward(len(inputs))
        optimizer.zero_grad()
        loss.backward()
        truth.backward(loss)
        optimizer.step()
        truth.step()
    print(accuracy())
truth.tell()
