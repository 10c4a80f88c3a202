"""Ceilings and model reports of the GPU this runs on, as one Markdown page.

    python benchmarks/gpu_report.py -o docs/results/h200-model.md

Every block is the output of the command above it; nothing is typed in by hand.
"""

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

COMMANDS = (
    "hardware --measure --device cuda",
    "model examples/resnet.py:build --input 32x3x224x224 --measure",
    "model examples/resnet.py:build --input 32x3x224x224 --train --optimizer momentum --measure",
    "model examples/gpt2.py:build --input 8x1024:int64 --measure",
    "model examples/gpt2.py:build --input 8x1024:int64 --train --measure --fit 80GiB",
    "model examples/gpt2.py:build --input 8x1024:int64 --dtype bfloat16 --measure",
    "model examples/gpt2.py:build --input 1x128:int64 --sweep batch=1,2,4,8,16",
    "model examples/llama.py:build_8b --input 1x4096:int64 --measure",
    "model examples/mlp.py:build examples/cnn.py:build examples/transformer.py:build",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output: Path = parser.parse_args().output
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    lines: list[str] = []
    for part in parts():  # written as it grows: a run cut short keeps what it has
        lines += part
        output.write_text("\n".join([*lines, ""]))
    print(f"wrote {output}")


def parts() -> Iterator[list[str]]:
    name = torch.cuda.get_device_name()
    yield [
        f"# Model reports on an {name}",
        "",
        f"{datetime.date.today()} · Python {platform.python_version()} · torch "
        f"{torch.__version__} · {name}, driver {driver()}",
        "",
        "Made by `python benchmarks/gpu_report.py -o docs/results/h200-model.md`.",
    ]
    for command in COMMANDS:
        print(f"ridgeline {command}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "ridgeline", *command.split()], capture_output=True, text=True
        )
        text = (done.stdout if done.returncode == 0 else done.stderr).rstrip()
        text = "\n".join(line.rstrip() for line in text.splitlines())
        failed = ["", f"exit code {done.returncode}"] if done.returncode else []
        yield ["", f"## `ridgeline {command}`", "", "```", text, "```", *failed]


def driver() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", "hardware", "--json"], capture_output=True, text=True
    )
    devices = json.loads(done.stdout)["devices"]
    return next(d["driver"] for d in devices if d["kind"] == "cuda")


if __name__ == "__main__":
    main()
