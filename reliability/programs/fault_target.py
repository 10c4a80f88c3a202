"""The program faults are put beside: a loader, a model, evaluation, a way to end with code 3."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 8), torch.randn(96, 1))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
criterion = nn.MSELoss()
for _ in range(2):
    for x, y in DataLoader(data, 8, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
    model.eval()
    with torch.no_grad():
        print(model(data.tensors[0]).sum().item().hex())
    model.train()
sys.exit(3)
