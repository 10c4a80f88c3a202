"""Fine-tuning in eval mode (frozen norms), two loaders side by side, an optimizer subclassed."""

import torch
import torch.nn.functional as F
from nets import labelled, mlp
from torch.utils.data import DataLoader
from truth import Truth


class Clipped(torch.optim.SGD):
    """A subclass that calls its parent's step: torch's hooks fire twice."""

    def step(self, closure: object = None) -> None:
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        super().step()


torch.manual_seed(0)
truth = Truth()
model = mlp().eval()
optimizer = Clipped(model.parameters(), lr=0.1)
one, other = (DataLoader(labelled(80), batch_size=4) for _ in range(2))
for (inputs, labels), (more, _) in zip(one, other, strict=True):
    loss = F.cross_entropy(model(inputs), labels) + model(more).pow(2).mean()
    truth.forward(len(inputs) + len(more), calls=2)
    optimizer.zero_grad()
    loss.backward()
    truth.backward(loss)
    optimizer.step()
    truth.step()
truth.tell()
