"""Compare the peak that a snapshot shows with the counters of the CUDA allocator, to the byte.

    python benchmarks/memory_gpu.py --save memory_gpu.json

Six programs run a few steps each, in a process of its own, while torch records the history of its
allocator. The peak of the study is compared with `requested_bytes.all.peak` of
`torch.cuda.memory_stats()`. The exit code is 1 if a peak differs, and 4 without a CUDA device.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from ridgeline.memory.study import study_snapshot

STEPS = 4
MAX_EVENTS = 1_000_000
Step = Callable[[], None]


def training(model: nn.Module, *inputs: torch.Tensor, dtype: torch.dtype | None = None) -> Step:
    """Return a step of AdamW on the mean square of the model's first output."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
            output = model(*inputs)
        output = output[0] if isinstance(output, tuple) else output
        output.float().square().mean().backward()
        optimizer.step()

    return step


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(512, 8, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


def convolutions() -> nn.Module:
    sizes = (3, 64, 128, 256)
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
        for a, b in itertools.pairwise(sizes)
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(12)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint_sequential(self.layers, 4, x, use_reentrant=False)


def inference() -> Step:
    model, x = encoder().cuda().eval(), torch.randn(32, 256, 512, device="cuda")

    def step() -> None:
        with torch.inference_mode():
            model(x)

    return step


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda")


PROGRAMS: dict[str, Callable[[], Step]] = {
    "transformer encoder": lambda: training(encoder().cuda(), random(16, 256, 512)),
    "the same in bfloat16": lambda: training(
        encoder().cuda(), random(16, 256, 512), dtype=torch.bfloat16
    ),
    "convolutions": lambda: training(convolutions().cuda(), random(64, 3, 224, 224)),
    "LSTM": lambda: training(nn.LSTM(512, 512, 2, batch_first=True).cuda(), random(32, 128, 512)),
    "checkpointed layers": lambda: training(Checkpointed().cuda(), random(256, 2048)),
    "inference": inference,
}


def run(name: str) -> dict[str, Any]:
    """Run one program in this process, and return both peaks."""
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=MAX_EVENTS, stacks="python")
    step = PROGRAMS[name]()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    counted = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
        device = study_snapshot(path).devices[0]
    return {
        "program": name,
        "counted_bytes": counted,
        "snapshot_bytes": device.peak.bytes,
        "by_kind": {str(kind): size for kind, size in device.peak.by_kind.items()},
        "events": device.events,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--save", type=Path, help="write the figures to this file")
    parser.add_argument("--program", choices=PROGRAMS, help="run one program in this process")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("memory_gpu: this machine has no CUDA device", file=sys.stderr)
        return 4
    if asked.program:
        print(json.dumps(run(asked.program)))
        return 0
    found = []
    for name in PROGRAMS:
        done = subprocess.run(
            [sys.executable, __file__, "--program", name],
            capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
        found.append(json.loads(done.stdout.splitlines()[-1]))
        row = found[-1]
        same = "equal" if row["counted_bytes"] == row["snapshot_bytes"] else "DIFFERENT"
        print(f"{name:24} {row['counted_bytes']:>16,} {row['snapshot_bytes']:>16,}  {same}")
    if asked.save:
        versions = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
        asked.save.write_text(json.dumps({**versions, "programs": found}, indent=1))
    return int(any(row["counted_bytes"] != row["snapshot_bytes"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
