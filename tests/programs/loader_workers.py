"""A loader with workers: forked, or spawned with `spawn` as the argument."""

import sys

import torch
import torch.nn.functional as F
from nets import labelled, mlp
from torch.utils.data import DataLoader
from truth import Truth


def main() -> None:
    torch.manual_seed(0)
    truth = Truth()
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    context = sys.argv[1] if len(sys.argv) > 1 else "fork"
    loader = DataLoader(
        labelled(40), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context=context
    )
    for _ in range(2):
        for inputs, labels in loader:
            loss = F.cross_entropy(model(inputs), labels)
            truth.forward(len(inputs))
            optimizer.zero_grad()
            loss.backward()
            truth.backward(loss)
            optimizer.step()
            truth.step()
    truth.tell()


if __name__ == "__main__":
    main()
