"""A WGAN with gradient penalty: the generator learns after every third batch, which ends a step."""

import torch
from nets import WIDTH, labelled, mlp
from torch import nn
from torch.utils.data import DataLoader
from truth import Truth

torch.manual_seed(0)
truth = Truth()
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, WIDTH))
critic = mlp(outputs=1)
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)
for at, (real, _labels) in enumerate(DataLoader(labelled(240), batch_size=4)):
    fake = generator(torch.randn(4, 4)).detach()
    mixed = (0.5 * (real + fake)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    truth.forward(len(real), calls=4)
    of_critic.zero_grad()
    loss.backward()
    truth.backward(loss)
    of_critic.step()
    if at % 3 == 2:
        of_generator.zero_grad()
        loss = -critic(generator(torch.randn(4, 4))).mean()
        truth.forward(calls=2)
        loss.backward()
        truth.backward(loss)
        of_generator.step()
        truth.step(optimizers=4)
truth.tell()
