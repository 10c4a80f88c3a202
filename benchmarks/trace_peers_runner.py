"""One command as a whole process: wall time, CPU time and peak memory, for `trace_peers.py`.

The command is a child of a process of its own, so that RUSAGE_CHILDREN holds it alone. The peak is
that of the largest single process of its tree, which is kind to a tool that works in several.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from msgspec import Struct


class Measured(Struct, frozen=True):
    seconds: float
    cpu_seconds: float
    peak_mb: float
    load: float
    """The machine's load average over the last minute, at the end."""
    output: str


class Failed(Exception):
    pass


def measured(command: Sequence[str], environment: dict[str, str], limit_s: float) -> Measured:
    """Raises `Failed` where the command does, or runs past the limit."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", _RUNNER, str(limit_s), *command],
        env=os.environ | environment, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise Failed((done.stderr.strip() or "no word").splitlines()[-1][:200])
    head, _, output = done.stdout.partition("\n")
    seconds, cpu, peak_kib = json.loads(head)
    return Measured(seconds, cpu, peak_kib * 1024 / 1e6, os.getloadavg()[0], output)


# -S and few imports: a forked child counts its parent's pages until it has become the command.
_RUNNER = """
import os, resource, signal, subprocess, sys, time
begun = time.perf_counter()
child = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, start_new_session=True)
try:
    output, _ = child.communicate(timeout=float(sys.argv[1]))
except subprocess.TimeoutExpired:
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    sys.exit(f"stopped after {sys.argv[1]} s")
seconds = time.perf_counter() - begun
if child.returncode:
    sys.exit(child.returncode)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print([seconds, used.ru_utime + used.ru_stime, used.ru_maxrss], flush=True)
sys.stdout.buffer.write(output)
"""
