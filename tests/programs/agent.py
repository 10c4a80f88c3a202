"""Actor and critic in one module whose own `forward` is never called: its children are."""

import torch
from nets import WIDTH, mlp
from torch import Tensor, nn
from torch.distributions import Categorical
from truth import Truth


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = mlp(outputs=2)
        self.critic = mlp(outputs=1)

    def get_value(self, state: Tensor) -> Tensor:
        return self.critic(state)

    def get_action(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chosen = Categorical(logits=self.actor(state))
        action = chosen.sample()
        return action, chosen.log_prob(action), self.critic(state)


torch.manual_seed(0)
truth = Truth()
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
for _ in range(5):
    with torch.no_grad():  # the rollout
        for _ in range(6):
            agent.get_value(torch.randn(4, WIDTH))
            truth.evaluation()
    for _ in range(4):
        action, likelihood, value = agent.get_action(torch.randn(4, WIDTH))
        truth.forward(4, calls=2)
        loss = (value.squeeze(1) - action).pow(2).mean() - likelihood.mean()
        optimizer.zero_grad()
        loss.backward()
        truth.backward(loss)
        optimizer.step()
        truth.step()
truth.tell()
