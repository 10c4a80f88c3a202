"""Row 5: workers and ranks. Equal to plain, nobody left behind, nobody hangs."""

import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from reliability.arms import laid_out, listed, ridgeline
from reliability.case import HERE, Case, read_file
from reliability.outcome import Outcome, python, start, surroundings
from reliability.row import Asked, Row, each

LATE_S = 3.0
"""The watcher may live so much longer than the program."""


def run(asked: Asked) -> list[Row]:
    row = Row(5, "workers and ranks", least=40)
    base = Path(tempfile.mkdtemp(prefix="reliability-"))
    each(row, read_file(HERE / "workers.cases"), lambda case: compared(case, base), asked, named)
    shutil.rmtree(base, ignore_errors=True)
    return [row]


def named(case: Case) -> str:
    return case.name


def compared(case: Case, base: Path) -> list[str]:
    folder = base / case.name
    plain, plain_files, left = arm(case, folder, ours=False)
    if left:
        return [f"plain, it leaves {left} behind: not a program for this row"]
    ours, files, left = arm(case, folder, ours=True)
    found = []
    if ours.hung:
        found.append("hung for a minute")
    if plain.code != ours.code:
        found.append(f"exit: {plain.code} → {ours.code}; {ours.err[-500:]!r}")
    if plain.out != ours.out:
        found.append(f"stdout: {plain.out[-300:]!r} → {ours.out[-300:]!r}")
    if not case.ranks and plain.err != ours.err:
        found.append(f"stderr: {plain.err[-300:]!r} → {ours.err[-300:]!r}")
    if plain_files != files:
        found.append(f"files: {plain_files} → {files}")
    if left:
        found.append(f"left behind after {LATE_S:.0f} s: {left}")
    return found


def arm(case: Case, folder: Path, *, ours: bool) -> tuple[Outcome, dict[str, bytes], list[str]]:
    """Runs it with a mark in the environment, by which whoever is left behind is known."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    target = laid_out(replace(case, group="workers"), folder)
    before = set(listed(folder))
    mark = f"{folder.name}-{time.monotonic_ns()}"
    env = surroundings({"RELIABILITY_MARK": mark})
    us = ["-m", "ridgeline", "run", "-q", "--steps", "4"]
    if case.ranks:
        launcher = [python(), "-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(case.ranks)]
        command = [*launcher, *(us if ours else []), *target, *case.args]
    else:
        command = [*(ridgeline() + us[2:] if ours else [python()]), *target, *case.args]
    done = start(command, folder, env)
    files = {
        n: (folder / n).read_bytes() for n in listed(folder) if n not in before and "rank" in n
    }
    return done, files, left_behind(mark)


def left_behind(mark: str) -> list[str]:
    """Processes that carry the mark once their time is over."""
    end = time.monotonic() + LATE_S
    while found := marked(mark):
        if time.monotonic() > end:
            return found
        time.sleep(0.1)
    return []


def marked(mark: str) -> list[str]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and entry != str(os.getpid()):
            try:
                if mark.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    words = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ")
                    found.append(f"{entry} {words[:120].decode(errors='replace')}")
            except OSError:
                continue
    return found
