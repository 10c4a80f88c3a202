"""The program that `overhead.py` runs, plain and under each tool: the same file for all.

It trains, a block of steps at a time as it is asked on stdin, and answers with the block's
nanoseconds by its own clock, and those of its processor time. With `start` as the workload it only
imports torch and says when. Not meant to be run by hand.
"""

import time

FIRST_NS = time.monotonic_ns()

import argparse  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import nullcontext  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

TORCH_NS = time.monotonic_ns()

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def small(width: int = 256) -> Callable[[], None]:
    """About 5 ms a step on one core: a loader, 20 modules, AdamW."""
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    samples = TensorDataset(torch.randn(4096, width), torch.randint(0, 10, (4096,)))
    batches = endless(DataLoader(samples, batch_size=32, shuffle=True))

    def step() -> None:
        inputs, labels = next(batches)
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def tiny() -> Callable[[], None]:
    """The same calls with next to nothing in them: what hooks cost stands out."""
    return small(width=8)


def resnet50() -> Callable[[], None]:
    from resnet import resnet50 as build

    model = build().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(32, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (32,), device="cuda")
    return _trained(model, optimizer, images, labels)


def gpt2() -> Callable[[], None]:
    from gpt2 import GPT2, Config

    model = GPT2(Config(fused_attention=False)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 50257, (8, 1024), device="cuda")
    return _trained(model, optimizer, ids, ids.roll(-1, dims=1).flatten())


def _trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> Callable[[], None]:
    def step() -> None:
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=["start", "tiny", "small", "resnet50", "gpt2"])
    parser.add_argument("--torch-profiler", action="store_true", help="all of it, with stacks")
    args = parser.parse_args()
    say("began", FIRST_NS, TORCH_NS)
    if args.workload == "start":
        say("over", time.monotonic_ns())
        return
    sys.path.append(str(EXAMPLES))
    torch.manual_seed(0)
    step = {"tiny": tiny, "small": small, "resnet50": resnet50, "gpt2": gpt2}[args.workload]()
    on_gpu = args.workload in ("resnet50", "gpt2")
    finish = torch.cuda.synchronize if on_gpu else lambda: None
    with profiled() if args.torch_profiler else nullcontext():
        for line in sys.stdin:
            word = line.strip()
            if word == "end":
                break
            if word in ("on", "off"):
                switch(word == "on")
                continue
            begun, used = time.perf_counter_ns(), time.process_time_ns()
            for _ in range(int(line)):
                step()
            finish()
            say("block", time.perf_counter_ns() - begun, time.process_time_ns() - used)


def switch(on: bool) -> None:
    """Takes the seams of the run we are in off, as at the end of its windows, or puts them back."""
    from ridgeline.harness.capture import live

    if live.session is None:
        raise SystemExit("this process is in no run")
    progress = live.session.progress
    seams = progress.detach.__self__  # type: ignore[attr-defined]
    if progress.off is not on:  # as asked already
        return
    progress.off = progress.gate.closed = not on
    if on:
        seams.put_on()
    else:
        seams.take_off(False, False, False)
        seams._put.clear()


def profiled() -> Any:
    return torch.profiler.profile(record_shapes=True, with_stack=True)


def say(word: str, *numbers: int) -> None:
    print(word, *numbers, flush=True)


if __name__ == "__main__":
    main()
