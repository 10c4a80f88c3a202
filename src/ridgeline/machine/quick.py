"""Ceilings of the processor for a few dtypes, measured in a process of its own and kept:
`python -m ridgeline.machine.quick float32`."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LIMIT_S = 30.0


def measure_beside(dtypes: Sequence[str]) -> bool:
    """Whether it was done: 3 to 5 s, most of it torch's import."""
    home = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), home]))
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [sys.executable, "-m", "ridgeline.machine.quick", *dtypes],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode == 0
    return False


def main() -> None:
    from ridgeline.machine.survey import ceilings

    ceilings("cpu", sys.argv[1:])


if __name__ == "__main__":
    main()
