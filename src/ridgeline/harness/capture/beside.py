"""A watcher for a block of a running program:
`python -m ridgeline.harness.capture.beside DIRECTORY PID`.

A process with threads and a CUDA context must not fork: this one is started afresh."""

import os
import subprocess
import sys
from pathlib import Path

from ridgeline.records.run_directory import RunDirectory


def start(directory: RunDirectory) -> "subprocess.Popen[bytes]":
    home = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), home]))
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ridgeline.harness.capture.beside",
            str(directory.path),
            str(os.getpid()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )


def main() -> None:
    from ridgeline.harness.capture.watching import deafen, watch

    deafen()
    watch(RunDirectory(Path(sys.argv[1])), 0, int(sys.argv[2]))


if __name__ == "__main__":
    main()
