"""No optimizer: the parameters are moved by hand, as language-model examples do it."""

import torch
import torch.nn.functional as F
from nets import CLASSES, WIDTH, mlp
from truth import Truth

torch.manual_seed(0)
truth = Truth()
model = mlp()
for _ in range(20):
    model.zero_grad()
    inputs, labels = torch.randn(4, WIDTH), torch.randint(0, CLASSES, (4,))
    loss = F.cross_entropy(model(inputs), labels)
    truth.forward(4)
    loss.backward()
    truth.backward(loss)
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)
    truth.step(optimizers=0)
truth.tell()
