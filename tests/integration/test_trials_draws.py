"""Whole programs that draw other random numbers under a fix: dropout in another layout, and noise,
batches and shuffles of a compiled program, on a CPU."""

from pathlib import Path

import pytest

from ridgeline.optimization.judge import DRAWN_ALIKE, WITHOUT_DROPOUT
from tests.integration.draws_judged import PROGRAM, judged

pytestmark = pytest.mark.reliability


def test_it_is_compared_without_dropout_and_equal(tmp_path: Path) -> None:
    found = judged(tmp_path, "channels-last")
    assert found.as_it_is.equality == "differs"
    assert found.redrawn.equality == "equal", found.redrawn.why
    assert found.redrawn.why.endswith(WITHOUT_DROPOUT)
    (dropout,) = (check for check in found.redrawn.checks if check.what == "dropout")
    # 8 steps of a fifth of 16 × 16 × 8 × 8 elements, and a tenth of 16 × 64 × 64 attention weights
    asked = f"{8 * (3277 + 6554):,}"
    assert dropout.text == f"dropout is called for {asked} elements, as in the baseline"


def test_what_computes_something_else_there_is_still_told(tmp_path: Path) -> None:
    """Where the layout is another, it learns faster."""
    cheats = PROGRAM.replace(
        "    loss.backward()",
        "    last = net.conv.weight.is_contiguous(memory_format=torch.channels_last)\n"
        "    (loss * (1.5 if last else 1.0)).backward()",
    )
    found = judged(tmp_path, "channels-last", program=cheats)
    assert found.redrawn.equality == "differs"


def test_a_type_that_drops_the_same_needs_no_other_trial(tmp_path: Path) -> None:
    found = judged(tmp_path, "autocast", program=PROGRAM.replace("0.1 if", "0.0 if"))
    assert found.as_it_is.equality in ("equal", "weak")
    assert found.trials == 0


BEGIN = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
"""
VAE = f"""{BEGIN}
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(32, 16), nn.Linear(8, 32)
    def forward(self, x):
        mean, spread = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(spread) * (spread / 2).exp()
        return self.decoder(z), mean, spread
net = VAE().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(60):
    x = torch.rand(16, 32).to(device)
    out, mean, spread = net(x)
    loss = F.mse_loss(out, x) - 0.01 * (1 + spread - mean**2 - spread.exp()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DIFFUSION = f"""{BEGIN}
class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.inner = nn.Embedding(100, 64), nn.Linear(32, 64)
        self.outer = nn.Linear(64, 32)
    def forward(self, x, t):
        h = F.dropout(F.silu(self.inner(x) + self.time(t)), 0.1, self.training)
        h = h + 0.1 * torch.randn_like(h)
        return self.outer(F.dropout(h, 0.2, self.training))
data, net = torch.rand(64, 32), Denoiser().to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for epoch in range(20):
    for chosen in torch.randperm(64).split(16):
        x = data[chosen].to(device)
        noise, t = torch.randn_like(x), torch.randint(0, 100, (16,), device=device)
        level = (t / 100)[:, None]
        loss = F.mse_loss(net(x * (1 - level) + noise * level, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
GAN = f"""{BEGIN}
G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 16)).to(device)
D = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to(device)
of_g, of_d = (torch.optim.Adam(net.parameters(), lr=2e-4) for net in (G, D))
judge = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(16, 1, device=device), torch.zeros(16, 1, device=device)
for step in range(60):
    real, fake = torch.rand(16, 16).to(device), G(torch.randn(16, 8, device=device))
    of_d.zero_grad()
    (judge(D(real), ones) + judge(D(fake.detach()), zeros)).backward()
    of_d.step()
    of_g.zero_grad()
    judge(D(fake), ones).backward()
    of_g.step()
"""
SAMPLER = f"""{BEGIN}
class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 16)
    def forward(self, x):
        noise = torch.randn(x.shape[0], 32, device=x.device)
        return self.outer(F.relu(self.inner(x)) + noise)
net = Sampler().to(device).eval()
with torch.no_grad():
    for step in range(60):
        out = net(torch.rand(16, 16).to(device))
"""
CHEAT = VAE.replace(
    "return self.decoder(z)",
    "z = z * 1.1 if torch.compiler.is_compiling() else z\n        return self.decoder(z)",
)


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("program", "equality"),
    [(VAE, "equal"), (DIFFUSION, "equal"), (GAN, "equal"), (SAMPLER, "equal"), (CHEAT, "differs")],
    ids=["vae", "diffusion", "gan", "inference", "cheat"],
)
def test_a_compiled_program_is_compared_with_the_random_numbers_of_eager_code(
    tmp_path: Path, program: str, equality: str
) -> None:
    """Batches, noise and latents come from the generator that a compiled model moves otherwise."""
    found = judged(tmp_path, "compile", program=program, trains=program is not SAMPLER)
    assert found.as_it_is.equality == "differs"
    assert any(check.what == "data" and not check.passed for check in found.as_it_is.checks)
    assert found.redrawn.equality == equality, found.redrawn.why
    assert found.redrawn.why.endswith(DRAWN_ALIKE)
    assert found.trials == (1 if equality == "equal" else 2)  # then without dropout: it has none
