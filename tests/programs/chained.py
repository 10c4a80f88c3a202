"""Encoder and decoder as two models, one optimizer, a frozen teacher, an average of the weights."""

import copy

import torch
import torch.nn.functional as F
from nets import WIDTH, labelled
from torch import nn
from torch.utils.data import DataLoader
from truth import Truth

torch.manual_seed(0)
truth = Truth()
encoder, decoder = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)
teacher = copy.deepcopy(encoder).eval()
average = copy.deepcopy(decoder)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
for inputs, _labels in DataLoader(labelled(80), batch_size=4):
    with torch.no_grad():
        wanted = teacher(inputs)
        truth.evaluation()
    hidden = encoder(inputs)
    loss = F.mse_loss(decoder(hidden), inputs) + F.mse_loss(hidden, wanted)
    truth.forward(len(inputs), calls=2)
    optimizer.zero_grad()
    loss.backward()
    truth.backward(loss)
    optimizer.step()
    with torch.no_grad():
        for kept, now in zip(average.parameters(), decoder.parameters(), strict=True):
            kept.lerp_(now, 0.01)
    truth.step()
truth.tell()
