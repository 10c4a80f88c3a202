"""Imports torch once, then does one small training in a fork for each line of its input.

A line is `seam:N:error`, `plain` (without us) or `count`, and may name the run's directory after a
space: then it stays. A program's own side of a run is put on
as at the import of torch, and taken leave of as at its end; the answer is a line of JSON. Starting
an interpreter for each would cost three seconds a fault, this a fifth of one.
"""

import json
import os
import runpy
import sys
import tempfile
import time
import traceback
from pathlib import Path

import faults
import msgspec
import torch

import ridgeline.harness.capture.seams as beginning
from ridgeline.harness.capture import program_exit as leaving
from ridgeline.records.run import RunFile, Settings, Target
from ridgeline.records.run_directory import started

SLOWEST = 30.0


def main() -> None:
    torch.set_num_threads(1)
    script = sys.argv[1]
    torch.profiler.profile  # noqa: B018  (loaded before the forks)
    for line in sys.stdin:
        point, _, kept = line.strip().partition(" ")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run = Path(kept) if kept else folder / "run"
            print(json.dumps(one(point, script, folder, run)), flush=True)


def one(line: str, script: str, folder: Path, directory: Path) -> dict[str, object]:
    out, err = folder / "out", folder / "err"
    pid = os.fork()
    if pid == 0:
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = 99
        try:
            code = run(line, script, folder, directory)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    hung = waited(pid)
    return {
        "code": hung,
        "out": out.read_text(errors="replace"),
        "err": err.read_text(errors="replace"),
        "calls": (folder / "calls").read_text().split() if (folder / "calls").exists() else [],
    }


def waited(pid: int) -> int:
    end = time.monotonic() + SLOWEST
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -1000


def run(line: str, script: str, folder: Path, directory: Path) -> int:
    if line != "plain":
        make(directory)
        arm(line, folder)
        try:
            beginning.begin(torch, str(directory))
        except Exception as error:  # as the start-up module does
            print(f"ridgeline: not recorded: {type(error).__name__}: {error}", file=sys.stderr)
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as left:
        code = int(left.code or 0)
    if line != "plain":
        try:
            leaving.farewell(str(directory), "0")
        except BaseException as error:
            print(f"ridgeline: not recorded: {type(error).__name__}: {error}", file=sys.stderr)
    return code


def make(directory: Path) -> None:
    directory.mkdir(parents=True)
    pid = os.getpid()
    made = RunFile(
        name=directory.name,
        target=Target(kind="script", name="x"),
        settings=Settings(steps=4, quiet=True),
        pid=pid,
        pid_started=started(pid) or 0.0,
    )
    (directory / "run.json").write_bytes(msgspec.json.encode(made))


def arm(line: str, folder: Path) -> None:
    faults._BORN = os.getpid()
    seam = line.split(":")[0]
    if line == "count":
        faults._log[:] = [str(folder / "calls")]
    else:
        faults._fault[:] = ["program", *line.split(":")]
    if seam in ("inner", "count"):
        import inner

        inner.put_on()
    faults.put_on(*((seam,) if seam in faults.SEAMS else faults.SEAMS if line == "count" else ()))


if __name__ == "__main__":
    main()
