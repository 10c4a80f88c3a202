"""Three backwards a step, the loss divided; batches from a function, no DataLoader; a schedule."""

import torch
import torch.nn.functional as F
from nets import CLASSES, WIDTH, mlp
from truth import Truth

PARTS = 3

torch.manual_seed(0)
truth = Truth()
model = mlp()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5)
for _ in range(20):
    for _ in range(PARTS):
        inputs, labels = torch.randn(4, WIDTH), torch.randint(0, CLASSES, (4,))
        loss = F.cross_entropy(model(inputs), labels) / PARTS
        truth.forward(4)
        loss.backward()
        truth.backward(loss, PARTS)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    schedule.step()
    truth.step()
truth.tell()
