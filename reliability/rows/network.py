"""Row 17: no network. An audit hook in each process, and once with no network at all."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from reliability.arms import ridgeline
from reliability.case import HERE
from reliability.outcome import start, surroundings
from reliability.row import Asked, Row, each
from tests.unit.trace.traces_made import Made

AUDIT = Path(__file__).parents[1] / "audit"
EXAMPLES = Path(__file__).parents[2] / "examples"
CALLS = """import torch
def one():
    return torch.ones(9).sum()
def other():
    return torch.ones(9).sum()
"""
COMMANDS = {
    "run, no torch": (["run", "-c", "print(1)"], 0),
    "run": (["run", "--steps", "4", "-o", "out.json", "train.py"], 3),
    "run --python": (["run", "--python", "-q", "train.py"], 3),
    "run --full --stop-after": (["run", "--full", "--stop-after", "6", "train.py"], 0),
    "runs": (["runs"], 0),
    "runs --json": (["runs", "--json"], 0),
    "runs show": (["runs", "show", "latest"], 0),
    "report": (
        [
            "report",
            "latest",
            "-o",
            "r.html",
            "-o",
            "r.md",
            "-o",
            "r.csv",
            "-o",
            "r.json",
            "-o",
            "tensorboard/",
        ],
        0,
    ),
    "trace": (["trace", "TRACE", "-o", "trace.html"], 0),
    "model": (["model", "MLP", "-o", "model.html"], 0),
    "compare": (["compare", "calls.py:one", "calls.py:other", "--budget", "20s"], 0),
    "explain": (["explain", "loader-starves"], 0),
    "hardware": (["hardware"], 0),
    "runs rm": (["runs", "rm", "--keep", "1"], 0),
}


def run(asked: Asked) -> list[Row]:
    row = Row(17, "no network", least=len(COMMANDS))
    base = Path(tempfile.mkdtemp(prefix="reliability-"))
    shutil.copy(HERE / "fault_target.py", base / "train.py")
    (base / "calls.py").write_text(CALLS)
    made = Made()
    made.op("aten::mm", 100, 90).launch("gemm", 110, 200, 1_500, 1)
    trace = made.write(base)
    alone = subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0
    row.notes.append(f"in a namespace without network: {'yes' if alone else 'not allowed here'}")

    def heard(name: str) -> list[str]:
        words, code = COMMANDS[name]
        stand_in = {"TRACE": str(trace), "MLP": f"{EXAMPLES / 'mlp.py'}:build"}
        words = [stand_in.get(word, word) for word in words]
        log = base / f"log-{abs(hash(name))}"
        env = surroundings({"PYTHONPATH": str(AUDIT), "AUDIT_LOG": str(log)})
        before = ["unshare", "-rn"] if alone else []
        done = start([*before, *ridgeline(), *words], base, env)
        found = [] if done.code == code else [f"ended {done.code}: {done.err[-300:]!r}"]
        return found + (log.read_text().splitlines() if log.exists() else [])

    for name in COMMANDS:  # in order: the later ones need the runs of the first
        each(row, [name], heard, asked, str)
    shutil.rmtree(base, ignore_errors=True)
    return [row]
