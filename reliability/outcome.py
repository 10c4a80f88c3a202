"""Starts a command and keeps what it did: its end, its two streams, how long it took."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 60.0
"""No program here needs more than ten seconds alone on a busy machine: a minute is a hang."""
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Outcome:
    code: int
    """Negative: the signal that ended it."""
    out: bytes
    err: bytes
    seconds: float
    hung: bool = False


def surroundings(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The same small environment for each arm, whoever starts the proof."""
    keep = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "RIDGELINE_CACHE")
    env = {name: os.environ[name] for name in keep if name in os.environ}
    # one thread: the sums of a matmul do not depend on how many cores were free
    env |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "NO_COLOR": "1"}
    return env | dict(extra or {})


def start(
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    *,
    stdin: bytes = b"",
    streams: str = "",
    send: str = "",
    patience: float = PATIENCE,
) -> Outcome:
    """Runs it to its end, all holders of its streams included (the process that watches too)."""
    began = time.monotonic()
    process = subprocess.Popen(
        opened(command, streams),
        cwd=folder,
        env=dict(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if streams == "merged" else subprocess.PIPE,
        start_new_session=True,
    )
    if send:
        threading.Thread(target=send_when_ready, args=(process, send), daemon=True).start()
    try:
        out, err = process.communicate(stdin, timeout=patience)
    except subprocess.TimeoutExpired:
        end_session(process.pid)
        out, err = process.communicate()
        return Outcome(process.returncode, out, err or b"", time.monotonic() - began, hung=True)
    return Outcome(process.returncode, out, err or b"", time.monotonic() - began)


def opened(command: Sequence[str], streams: str) -> list[str]:
    """A shell in front where a stream has to be missing from the start."""
    shell = {
        "no-stdin": 'exec "$@" <&-',
        "no-stdout": 'exec "$@" >&-',
        "no-stderr": 'exec "$@" 2>&-',
        "closed-pipe": 'exec "$@" > >(exec true)',
        "full": 'exec "$@" >/dev/full',
    }.get(streams)
    return ["bash", "-c", shell, "bash", *command] if shell else list(command)


def send_when_ready(process: "subprocess.Popen[bytes]", send: str) -> None:
    """Sends the signal once the program has named itself "ready" (/proc/self/comm): no file is
    written for it, and the process id stays the same through our own exec."""
    named = Path(f"/proc/{process.pid}/comm")
    while process.poll() is None:
        if named.read_text().strip() == "ready":
            os.kill(process.pid, getattr(signal, f"SIG{send}"))
            return
        time.sleep(0.02)


def end_session(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def python() -> str:
    """Return the interpreter that the installed command names: programs print `sys.executable`.

    It stands in the first line of the command, and in the second where its path holds a space:
    `#!/bin/sh`, then `'''exec' "/a folder/bin/python" "$0" "$@"`."""
    command = Path(sys.executable).with_name("ridgeline")
    if not command.exists():
        return sys.executable
    first, second = [*command.read_text().splitlines(), "", ""][:2]
    if first == "#!/bin/sh":
        return shlex.split(second)[1]
    return first.removeprefix("#!").strip() or sys.executable
