"""Two models and two optimizers, each stepping once an iteration: an iteration is one step."""

import torch
import torch.nn.functional as F
from nets import WIDTH, labelled, mlp
from torch import nn
from torch.utils.data import DataLoader
from truth import Truth

torch.manual_seed(0)
truth = Truth()
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, WIDTH))
critic = mlp(outputs=1)
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4)
for _ in range(2):
    for real, _labels in DataLoader(labelled(40), batch_size=4):
        ones, zeros = torch.ones(4, 1), torch.zeros(4, 1)
        of_critic.zero_grad()
        on_real = F.binary_cross_entropy_with_logits(critic(real), ones)
        truth.forward(len(real))
        on_real.backward()
        truth.backward(on_real)
        fake = generator(torch.randn(4, 4))
        on_fake = F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)
        truth.forward(calls=2)
        on_fake.backward()
        truth.backward(on_fake)
        of_critic.step()
        of_generator.zero_grad()
        fooled = F.binary_cross_entropy_with_logits(critic(fake), ones)
        truth.forward()
        fooled.backward()
        truth.backward(fooled)
        of_generator.step()
        truth.step(optimizers=2)
truth.tell()
