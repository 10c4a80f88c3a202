"""Whole programs that leak, and programs whose memory only seems to leak."""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.reliability  # `make programs`, and CI

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
"""
TRAINS = (
    HEAD
    + """
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.randn(256, 256), torch.randint(0, 10, (256,))


def step():
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()

"""
)
DECODES = (
    HEAD
    + """
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 256)
        self.qkv, self.head = nn.Linear(256, 768), nn.Linear(256, 100)

    def forward(self, token, past):
        q, k, v = self.qkv(self.embedding(token)).chunk(3, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        return self.head(F.scaled_dot_product_attention(q, k, v)), (k, v)


model = Decoder().eval()
torch.set_grad_enabled(False)
token, past = torch.zeros(64, 1, dtype=torch.long), None
for _ in range(150):
    logits, past = model(token, past)
    token = logits.argmax(-1)
"""
)
LEAKS = {
    "graphs of losses": TRAINS
    + """
history = []
for _ in range(120):
    step()
    history.append(net(x).square().mean())
""",
    "a hook registered again": TRAINS
    + """
store = []
for number in range(120):
    if number % 10 == 0:
        net[2].register_forward_hook(lambda module, given, made: store.append(made.detach()))
    step()
""",
    "answers of an inference": HEAD
    + """
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512)).eval()
ANSWERS = {}


def answer(number):
    with torch.inference_mode():
        ANSWERS[number] = net(torch.randn(512, 256))


for number in range(150):
    answer(number)
""",
}
STEADY = {
    "a key-value cache": DECODES,
    "a list of predict()": TRAINS
    + """
def predict(batches):
    outputs = []
    for batch in batches:
        outputs.append(net(batch))
    return torch.cat(outputs).argmax(1)


for epoch in range(10):
    for _ in range(10):
        step()
    predict([x] * 10)
""",
    "a buffer that wraps": TRAINS
    + """
buffer = []
for number in range(150):
    if len(buffer) < 50:
        buffer.append(torch.randn(512, 512))
    else:
        buffer[number % 50] = torch.randn(512, 512)
    step()
""",
}


def ran(folder: Path, program: str, address_space: int = 0) -> dict[str, Any]:
    (folder / "program.py").write_text(program)

    def limited() -> None:
        if address_space:
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

    subprocess.run(
        [sys.executable, "-m", "ridgeline", "run", "-o", "result.json", "program.py"],
        cwd=folder, capture_output=True, timeout=180, preexec_fn=limited, check=False,
    )  # fmt: skip
    result, end = folder / "result.json", time.monotonic() + 60
    while not result.exists() and time.monotonic() < end:  # the watcher speaks last
        time.sleep(0.1)
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def growing(result: dict[str, Any]) -> list[str]:
    rules = [finding["rule"] for finding in result["findings"]]
    return [rule for rule in rules if rule in ("memory-leak", "graph-kept")]


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_found_and_comes_first(tmp_path: Path, name: str) -> None:
    result = ran(tmp_path, LEAKS[name])
    assert growing(result)[:1] == [result["findings"][0]["rule"]]


@pytest.mark.parametrize("name", STEADY)
def test_memory_that_is_given_back_is_not_called_a_leak(tmp_path: Path, name: str) -> None:
    assert growing(ran(tmp_path, STEADY[name])) == []


def test_a_program_that_dies_of_memory_is_told_so(tmp_path: Path) -> None:
    leak = (
        TRAINS
        + "kept = []\nfor _ in range(600):\n    step()\n    kept.append(torch.ones(10 << 20))\n"
    )
    result = ran(tmp_path, leak, address_space=4_000_000_000)
    full = result["out_of_memory"]
    assert result["verdict"] == "memory-capacity-bound"
    assert (full["on"], full["killed"], full["asked_bytes"]) == ("host", False, 40 << 20)
    assert full["place"].startswith("program.py:")
    assert result["memory"]["growth_bytes_per_step"] == pytest.approx(40 << 20, rel=0.05)
    assert growing(result) == [result["findings"][0]["rule"]]
    device = result["memory_study"]["devices"][0]
    assert device["growth"][0]["held_by"] == ["list `kept` of program.py"]
    assert device["growth"][0]["place"]["line"] == leak[: leak.index("kept.append")].count("\n") + 1
    assert device["advice"][0]["reason"]["code"] == "memory.stop-growth"
    assert device["advice"][0]["saves_bytes"] == pytest.approx(full["total_bytes"], rel=0.5)
    assert (full["held"][0]["name"], full["held"][0]["owner"]) == ("kept", "global")
