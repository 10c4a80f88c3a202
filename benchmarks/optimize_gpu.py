"""What `ridgeline optimize` makes of the two training examples on a GPU, beside a specialist.

    python benchmarks/optimize_gpu.py gpt2 --into visit       or: resnet50, batch, …
    python benchmarks/optimize_gpu.py --page visit -o docs/results/h200-optimize.md

Each is the command a person types, on the script as it is; what it printed and wrote is kept, and
the page is made of that. Nothing is typed in or chosen by hand. Asked for is what a specialist
reached by hand on an H200, within the default budget of ten minutes, losses equal.
"""

import argparse
import datetime
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from msgspec import Struct

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


class Visit(Struct, frozen=True, kw_only=True):
    title: str
    words: str
    """After `ridgeline optimize --budget …`."""
    asked: str


VISITS = {
    "gpt2": Visit(
        title="GPT-2 124M, batch 8 × 1,024, AdamW, attention written out",
        words="examples/train_gpt2.py --steps 200",
        asked="By hand: 24.06 ms, 8.1 × the plain 194.5 ms.",
    ),
    "resnet50": Visit(
        title="ResNet-50, batch 32, SGD with momentum, nothing to load",
        words="examples/train_resnet50.py --resident --steps 1000",
        asked="By hand, on one batch kept on the device: 7.86 ms, 3.3 × the plain 25.98 ms.",
    ),
    "batch": Visit(
        title="ResNet-50 with the batch size free, nothing to load",
        words="--batch examples/train_resnet50.py --resident --steps 8000",
        asked="By hand: 6,502 images/s, 5.3 × the plain 1,232.",
    ),
    "loader": Visit(
        title="ResNet-50, fed by a DataLoader with four workers",
        words="examples/train_resnet50.py --steps 4000",
        asked="No figure was asked for.",
    ),
    "energy": Visit(
        title="ResNet-50, for energy",
        words="--goal energy examples/train_resnet50.py --resident --steps 1000",
        asked="No figure was asked for.",
    ),
}


def measure(name: str, into: Path, budget: str, within_s: float) -> int:
    """In a copy of the examples, beside which it writes what it writes."""
    home = into / name
    shutil.rmtree(home, ignore_errors=True)
    left_out = shutil.ignore_patterns(".*", "optimized_*", "faults", "pairs")
    shutil.copytree(EXAMPLES, home / "examples", ignore=left_out)
    words = f"--budget {budget} {VISITS[name].words}"
    command = [sys.executable, "-m", "ridgeline", "optimize", "--fresh", "-o", "found.json"]
    command += words.split()
    with (home / "said.txt").open("wb") as said, (home / "progress.txt").open("wb") as progress:
        process = subprocess.Popen(
            command, cwd=home, stdout=said, stderr=progress, env=os.environ | {"COLUMNS": "110"}
        )
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    (home / "command.txt").write_text(f"ridgeline optimize {words}")
    (home / "about.txt").write_text(
        f"{datetime.date.today()}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{device}, {os.cpu_count()} cores"
    )
    shutil.rmtree(home / ".ridgeline", ignore_errors=True)
    print((home / "said.txt").read_text())
    return process.returncode


def page(measured: Path) -> Iterator[str]:
    yield "# `ridgeline optimize` on an H200\n"
    yield " ".join(line for line in __doc__.split("\n\n")[2].splitlines()) + "\n"
    for name, visit in VISITS.items():
        home = measured / name
        if (home / "said.txt").exists():
            yield f"## {visit.title}\n"
            yield f"{(home / 'about.txt').read_text()}. {visit.asked}\n"
            typed = (home / "command.txt").read_text()
            yield f"```\n$ {typed}\n{(home / 'said.txt').read_text()}```\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("visit", nargs="?", choices=tuple(VISITS))
    parser.add_argument("--into", type=Path, default=Path("visit"), help="where results are kept")
    parser.add_argument("--budget", default="8m", help="of the search; 8m")
    parser.add_argument(
        "--within", type=float, default=575, metavar="SECONDS",
        help="then it is interrupted as by Ctrl-C, which reports what was proven: a machine may be "
        "lent for ten minutes a command",
    )  # fmt: skip
    parser.add_argument("--page", type=Path, help="make the page of what is kept there")
    parser.add_argument("-o", "--output", type=Path, help="write the page here")
    asked = parser.parse_args()
    if asked.page:
        text = "\n".join(page(asked.page))
        print(text)
        if asked.output:
            asked.output.write_text(text)
        return 0
    if not asked.visit:
        parser.error("say which: " + ", ".join(VISITS))
    return measure(asked.visit, asked.into, asked.budget, asked.within)


if __name__ == "__main__":
    sys.exit(main())
