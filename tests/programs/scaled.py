"""A gradient scaler that finds infinities in the fifth step and leaves the parameters alone."""

import torch
import torch.nn.functional as F
from nets import labelled, mlp
from torch.utils.data import DataLoader
from truth import Truth

torch.manual_seed(0)
truth = Truth()
model = mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for at, (inputs, labels) in enumerate(DataLoader(labelled(80), batch_size=4)):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(inputs), labels)
    truth.forward(len(inputs))
    optimizer.zero_grad()
    scaled = scaler.scale(loss)
    scaled.backward()
    truth.backward(loss)
    if at == 4:
        next(model.parameters()).grad.fill_(float("inf"))
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    truth.step(skipped=scaler.get_scale() < before)
truth.tell()
