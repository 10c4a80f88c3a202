"""Two ways to run the command line as a person would, and what came of it.

`cold` starts `python -m ridgeline`. `warm` starts a Python that has torch imported already and lets
a copy of it become the program for each command: the same entry point, arguments, streams and exit
code, without the four seconds of imports each time.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "ridgeline")


def interruptible() -> None:
    """For `preexec_fn`: hear Ctrl-C even where the tests run in the background of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """stdout, which must be one JSON document and nothing else."""
        return json.loads(self.out)


def cold(arguments: Sequence[str], folder: Path, *, stdin: str = "") -> Outcome:
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


class Warm:
    """One waiting process; each command runs in a copy of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = 0
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Python's own view of it: readline sets COLUMNS=80 beneath it, xdist in its workers.
            env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
        )

    def __call__(self, arguments: Sequence[str], folder: Path) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._runs += 1
        out, err = (self._folder / f"{self._runs}.{stream}" for stream in ("out", "err"))
        order = {
            "argv": ["ridgeline", *arguments],
            "folder": str(folder),
            "out": str(out),
            "err": str(err),
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return Outcome(code, out.read_text(), err.read_text())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def _serve() -> None:

    import ridgeline.cli.model
    import ridgeline.cost.study.study
    import ridgeline.report.views.model
    import ridgeline.report.views.trace
    import ridgeline.trace.study  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(order)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(order: dict[str, Any]) -> None:
    from ridgeline.cli import main

    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order["folder"])
    sys.argv = order["argv"]
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        if not sys.stderr.closed:
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve()
