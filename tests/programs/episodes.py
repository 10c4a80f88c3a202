"""Policy gradient: the model is called once a move, an episode of varying length is a step."""

import torch
from nets import WIDTH, mlp
from torch.distributions import Categorical
from truth import Truth

torch.manual_seed(0)
truth = Truth()
policy = mlp(outputs=2)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for _ in range(20):
    state, kept, rewards = torch.randn(WIDTH), [], []
    length = int(torch.randint(2, 12, ()))
    for _ in range(length):
        chosen = Categorical(logits=policy(state))
        truth.forward()
        action = chosen.sample()
        kept.append(chosen.log_prob(action))
        rewards.append(float(action))
        state = torch.randn(WIDTH)
    loss = -(torch.stack(kept) * torch.tensor(rewards)).sum()
    optimizer.zero_grad()
    loss.backward()
    truth.backward(loss)
    optimizer.step()
    truth.step()
truth.tell()
