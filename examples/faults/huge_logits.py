"""A loss over all of a large vocabulary at once: the logits fill the memory.

fault: huge-logits
runs on: gpu
measure: memory
"""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = 70 if device == "cuda" else 60
TOKENS, WIDTH, VOCABULARY = (8192, 1024, 65536) if device == "cuda" else (512, 32, 32768)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, WIDTH)
        self.body = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.body(self.embed(tokens))
        return F.cross_entropy(self.head(hidden), targets)  # fault


def main() -> None:
    torch.manual_seed(0)
    model = Net().to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    tokens = torch.randint(512, (TOKENS,), device=device)
    targets = torch.randint(VOCABULARY, (TOKENS,), device=device)
    for _ in range(STEPS):
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
