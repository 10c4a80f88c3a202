"""An optimizer for each parameter, stepping inside backward as soon as its gradient is there."""

import torch
import torch.nn.functional as F
from nets import CLASSES, WIDTH, mlp
from torch import Tensor
from truth import Truth

torch.manual_seed(0)
truth = Truth()
model = mlp()
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}


def step(parameter: Tensor) -> None:
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
for _ in range(20):
    inputs, labels = torch.randn(4, WIDTH), torch.randint(0, CLASSES, (4,))
    loss = F.cross_entropy(model(inputs), labels)
    truth.forward(4)
    loss.backward()
    truth.backward(loss)
    truth.step(optimizers=len(optimizers))
truth.tell()
