"""Row 4: a killed run is readable, and at most a second of steps is lost."""

import json
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

from reliability.arms import ridgeline
from reliability.outcome import python, start, surroundings
from reliability.row import Asked, Row, each
from reliability.rows.faults import SMALL, counted
from reliability.zygote import INJECT, Zygote

COUNTED_RUNS = 3
"""Runs in which the calls of each seam are counted."""
LOST_S = 1.0
SLACK_S = 0.3
"""A step is written once a second at the end of a step, and the machine is shared."""
DAMAGED = 4
"""Exit code of `runs show` for a run that is not whole."""
SIGNALS = {
    "KILL": "killed", "TERM": "killed", "HUP": "killed", "ABRT": "killed", "SEGV": "killed",
    "INT": "interrupted",
}  # fmt: skip
DOORS = {
    "os._exit(5)": "killed",
    "os.execv('/bin/true', ['true'])": "killed",
    "os.abort()": "killed",
    "__import__('ctypes').string_at(0)": "killed",
    "sys.exit(7)": "finished",
    "raise ValueError('mine')": "raised",
}
TRAINING = """
import os, sys, time
import torch
model = torch.nn.Linear(8, 1); x = torch.ones(4, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
seen = os.open("seen", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
for step in range(100000):
    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
    os.write(seen, b"%d %d\\n" % (step, time.monotonic_ns()))
    if step == READY: open("/proc/self/comm", "w").write("ready")
    time.sleep(0.004)
    if step == LAST: DOOR
"""


def run(asked: Asked) -> list[Row]:
    row = Row(4, "a killed run is readable", least=100)
    base = Path(tempfile.mkdtemp(prefix="reliability-"))
    (base / "small.py").write_text(SMALL)
    chance = random.Random(asked.seed)
    small = small_points(base, chance)
    each(row, small, lambda point: small_kill(base, point), asked, lambda point: f"small {point}")
    with Zygote() as zygote:
        calls = surely_reached([zygote.counted() for _ in range(COUNTED_RUNS)])
        points = [f"{key}:{n}" for key, n in inner_points(calls, chance)]
        runs = base / "forks" / ".ridgeline" / "runs"
        each(row, points, lambda p: fork_kill(zygote, runs, p), asked, lambda p: f"fork {p}")
    if points and not asked.only:
        row.failures += unreadable(base / "forks", {p.name: None for p in runs.iterdir()})
    times = (0, chance.randrange(3, 20), chance.randrange(20, 60), chance.randrange(200, 500))
    whole = [(f"{name} after {n}", name, n) for n in times for name in SIGNALS]
    whole += [(door, "", 30 + 40 * i) for i, door in enumerate(DOORS)]
    each(row, whole, lambda case: whole_kill(base, *case), asked, lambda case: f"whole {case[0]}")
    shutil.rmtree(base, ignore_errors=True)
    return [row]


def surely_reached(counts: "list[dict[str, int]]") -> "dict[str, int]":
    """Return the smallest count of each seam. How often steps are written depends on the time that
    they take, and a call that does not come cannot be the moment of a kill."""
    return {key: min(one.get(key, 0) for one in counts) for key in counts[0]}


def small_points(base: Path, chance: random.Random) -> list[str]:
    """After each file operation of the command, and of the watcher."""
    points = []
    for key, times in sorted(counted(base, "small.py").items()):
        if key.split(":")[1] in ("open", "write", "fsync", "rename", "mkdir", "lock", "fork"):
            numbers = range(1, times + 1)
            points += [f"{key}:{n}" for n in chance.sample(numbers, min(len(numbers), 3))]
    return points


def inner_points(calls: "dict[str, int]", chance: random.Random) -> list[tuple[str, int]]:
    found = []
    for key, times in sorted(calls.items()):
        most = 16 if key.endswith((":inner", ":open", ":write")) else 5
        numbers = chance.sample(range(1, times + 1), min(times, most))
        found += [(key.removeprefix("program:"), n) for n in numbers]
    return found


def small_kill(base: Path, point: str) -> list[str]:
    folder = base / f"small-{point.replace(':', '-')}"
    folder.mkdir()
    env = surroundings({"PYTHONPATH": str(INJECT), "FAULT": f"{point}:KILL"})
    done = start([*ridgeline(), "run", "-q", str(base / "small.py")], folder, env)
    found = []
    if point.startswith("watcher") and (done.code, done.out) != (3, b"hello\n"):
        found.append(f"the watcher's death reached the program: {done.code} {done.out!r}")
    if b"Traceback" in done.err:
        found.append(f"a traceback: {done.err[-400:]!r}")
    return found + unreadable(folder, None)


def fork_kill(zygote: Zygote, runs: Path, point: str) -> list[str]:
    name = point.replace(":", "-")
    got = zygote.ask(f"{point}:KILL {runs / name}")
    return [] if got["code"] == -9 else [f"was not killed: {got['code']} {got['err']!r}"]


def whole_kill(base: Path, name: str, signal: str, last: int) -> list[str]:
    folder = base / f"whole-{abs(hash(name))}"
    folder.mkdir()
    door = "pass" if signal else name
    ready, leaves = (last, -1) if signal else (-1, last)
    source = TRAINING.replace("LAST", str(leaves)).replace("DOOR", door)
    source = source.replace("READY", str(ready))
    (folder / "train.py").write_text(source)
    env = surroundings()
    done = start([*ridgeline(), "run", "-q", "--full", "train.py"], folder, env, send=signal)
    expected = SIGNALS.get(signal) or DOORS[name]
    plain = {"os.execv('/bin/true', ['true'])": 0}.get(name)
    if done.hung or (plain is not None and done.code != plain):
        return [f"ended {done.code}, hung {done.hung}"]
    runs = [p.name for p in (folder / ".ridgeline" / "runs").iterdir()]
    return unreadable(folder, dict.fromkeys(runs, expected)) + lost(folder, runs[0])


def lost(folder: Path, name: str) -> list[str]:
    """Steps that the program saw and the run does not have, in seconds before the end."""
    steps = folder / ".ridgeline/runs" / name / "steps.jsonl"
    # A program killed at its first step may end before the file exists: no step is recorded then.
    rows = steps.read_text().splitlines() if steps.exists() else []
    seen = [line.split() for line in (folder / "seen").read_text().splitlines()]
    recorded = max((json.loads(row)["index"] for row in rows), default=-1)
    missing = [int(at) for step, at in seen if int(step) > recorded]
    span = (max(missing) - min(missing)) / 1e9 if missing else 0.0
    if span > LOST_S + SLACK_S:
        return [f"{len(missing)} of {len(seen)} steps lost, {span:.2f} s of them"]
    return []


def unreadable(folder: Path, expected: "dict[str, str | None] | None") -> list[str]:
    """`runs --json` and `runs show` answer with 0; the status is the right one. Only a run that was
    killed before it had a run.json is damaged, and `runs show` says so by its exit code."""
    env = surroundings()
    listed = start([*ridgeline(), "runs", "--json"], folder, env)
    if listed.code != 0:
        return [f"`runs --json` ended {listed.code}: {listed.err[-400:]!r}"]
    runs = {run["name"]: run["status"] for run in json.loads(listed.out)["runs"]}
    found = []
    if expected is not None and set(runs) != set(expected):
        found.append(f"listed {sorted(runs)}, there are {sorted(expected)}")
    for name, status in (expected or {}).items():
        if status is not None and runs.get(name) != status:
            found.append(f"status {runs.get(name)!r}, not {status!r}")
        if runs.get(name) == "running":
            found.append(f"{name} is still said to be running")
    if runs:
        found += shown(folder, list(runs), env)
    return found


def shown(folder: Path, names: list[str], env: dict[str, str]) -> list[str]:
    """All in one process, as `ridgeline runs show NAME` each."""
    code = (
        "import sys\nfrom ridgeline.cli import main\n"
        "for name in sys.argv[1:]:\n"
        "    sys.argv = ['ridgeline', 'runs', 'show', name]\n"
        "    try: main()\n"
        "    except SystemExit as left: print('SHOWN', name, left.code or 0, file=sys.stderr)\n"
        "    else: print('SHOWN', name, 0, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [python(), "-c", code, *names], cwd=folder, env=env, capture_output=True, text=True
    )
    told = [line.split()[1:] for line in done.stderr.splitlines() if line.startswith("SHOWN ")]
    codes = {name: int(code) for name, code in told}
    root = folder / ".ridgeline" / "runs"
    right = {name: 0 if (root / name / "run.json").exists() else DAMAGED for name in names}
    bad = [name for name in names if codes.get(name) != right[name]]
    return [f"`runs show {name}`: {done.stderr[-400:]!r}" for name in bad]
