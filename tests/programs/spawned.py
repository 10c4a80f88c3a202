"""Children train, spawned by the program itself; its own process makes no step."""

import sys

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from nets import CLASSES, WIDTH, mlp


def train(number: int, results: torch.Tensor) -> None:
    torch.manual_seed(number)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        inputs, labels = torch.randn(4, WIDTH), torch.randint(0, CLASSES, (4,))
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    results[number] = loss.detach()


if __name__ == "__main__":
    results = torch.zeros(2).share_memory_()
    if "fork" in sys.argv:
        children = [mp.get_context("fork").Process(target=train, args=(n, results)) for n in (0, 1)]
        for child in children:
            child.start()
        for child in children:
            child.join()
    else:
        mp.spawn(train, args=(results,), nprocs=2)
    print(results.tolist())
