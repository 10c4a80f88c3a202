"""The process of a race, seen from outside: started, asked, and started again when it has ended."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from ridgeline.harness.capture import launch
from ridgeline.harness.race.requests import ANSWERS, request_file
from ridgeline.harness.trials.begin import PLAN
from ridgeline.harness.trials.trial_process import COMPILED, failure_of
from ridgeline.harness.usercode.child_process import Ended, end_leftovers
from ridgeline.records.facts import Reason, because
from ridgeline.records.race import RaceMessage, RacePlan, RaceRequest
from ridgeline.records.run import Target
from ridgeline.records.trial import TrialFailure

_POLL_S = 0.005
_KEPT_LINES = 6


class RaceProcess:
    """One process of the program. `messages` yields what it answers, until it has ended."""

    def __init__(self, target: Target, plan: RacePlan, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.compiled = (home / COMPILED).absolute()
        """Folder of what the race compiles: a process that proves it finds it there."""
        self._directory = Path(tempfile.mkdtemp(prefix="race-", dir=home))
        (self._directory / PLAN).write_bytes(msgspec.json.encode(plan))
        environment = launch.environment(self._directory, 0, "ridgeline.harness.race.begin")
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.compiled)
        environment[launch.IN_A_TRIAL] = str(self._directory.absolute())
        environment.setdefault("PYTHONHASHSEED", str(plan.seed % 2**32))
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 # open as long as it runs
        self._began_ns = time.perf_counter_ns()
        self._process = subprocess.Popen(
            launch.command(target.kind, target.name, target.arguments),
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
            env=environment, start_new_session=True,
        )  # fmt: skip
        self._requests = 0
        self._read = 0

    def ask(self, request: RaceRequest) -> int:
        """Put a request before the process. Return its number."""
        self._requests += 1
        request = msgspec.structs.replace(request, number=self._requests)
        path = request_file(self._directory, self._requests)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(request))
        part.replace(path)
        return self._requests

    def messages(self, deadline_s: float) -> Iterator[RaceMessage | None]:
        """Yield answers as they come, and None while none comes. End when the process has ended
        and all is read, or at `deadline_s` of the monotonic clock."""
        while True:
            ended = self._process.poll() is not None
            known = self._new_messages()
            yield from known
            if (ended and not known) or time.monotonic() > deadline_s:
                return
            if not known:
                yield None
                time.sleep(_POLL_S)

    def _new_messages(self) -> list[RaceMessage]:
        try:
            with (self._directory / ANSWERS).open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [msgspec.json.decode(line, type=RaceMessage) for line in whole.splitlines()]

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def failure(self) -> Reason | None:
        """Return why the program ended; None if it ended by itself without an error."""
        code = self._process.poll()
        if code == 0:
            return None
        if code is None:
            return because(TrialFailure.TIMED_OUT, limit_s=0.0, step=None)
        ended = Ended(code=code, wall_ns=0, last_lines=self._last_lines())
        return failure_of(ended, 0.0, self._directory)

    def _last_lines(self) -> tuple[str, ...]:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        return tuple(line for line in lines if line.strip())[-_KEPT_LINES:]

    def end(self, patience_s: float = 2.0) -> None:
        """End the program and whatever it has started."""
        if self.is_running:
            self.ask(RaceRequest(number=0, end=True))
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        end_leftovers(launch.IN_A_TRIAL, str(self._directory.absolute()))
        self._output.close()
