"""Training in a thread of its own, with an evaluation in the main thread first."""

import threading

import torch
import torch.nn.functional as F
from nets import WIDTH, labelled, mlp
from torch.utils.data import DataLoader
from truth import Truth

torch.manual_seed(0)
truth = Truth()
model = mlp()


def train() -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in DataLoader(labelled(80), batch_size=4):
        loss = F.cross_entropy(model(inputs), labels)
        truth.forward(len(inputs))
        optimizer.zero_grad()
        loss.backward()
        truth.backward(loss)
        optimizer.step()
        truth.step()


with torch.no_grad():
    print(model(torch.ones(2, WIDTH)).sum().item())
    truth.evaluation()
thread = threading.Thread(target=train)
thread.start()
thread.join()
truth.tell()
