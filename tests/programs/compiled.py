"""A compiled model; the argument names the backend and, after a comma, what is compiled."""

import sys

import torch
import torch.nn.functional as F
from nets import CLASSES, WIDTH, Blocks
from torch import Tensor
from truth import Truth

backend, _, what = (sys.argv[1] if len(sys.argv) > 1 else "eager").partition(",")
torch.manual_seed(0)
truth = Truth()
model = Blocks()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
called = model
if what == "method":
    model.compile(backend=backend)
elif what == "blocks":
    for block in model.blocks:
        block.compile(backend=backend)
elif what != "function":
    called = torch.compile(model, backend=backend)


def loss_of(inputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(called(inputs), labels)


if what == "function":
    loss_of = torch.compile(loss_of, backend=backend)
for _ in range(24):
    inputs, labels = torch.randn(4, WIDTH), torch.randint(0, CLASSES, (4,))
    loss = loss_of(inputs, labels)
    truth.forward(4)
    optimizer.zero_grad()
    loss.backward()
    truth.backward(loss)
    optimizer.step()
    truth.step()
from torch._dynamo.utils import counters  # noqa: E402

truth.tell(graphs=counters["stats"]["unique_graphs"], breaks=sum(counters["graph_break"].values()))
