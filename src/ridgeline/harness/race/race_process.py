"""The process of a race, seen from outside: started, asked, and started again when it has ended."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ridgeline.harness.capture.launch import IN_A_TRIAL, FreshProgram
from ridgeline.harness.race.requests import ANSWERS, request_file
from ridgeline.harness.trials.trial_process import COMPILED, failure_of
from ridgeline.harness.usercode.child_process import Ended, end_leftovers
from ridgeline.records.facts import Reason, because
from ridgeline.records.race import RaceMessage, RacePlan, RaceRequest
from ridgeline.records.run import Target
from ridgeline.records.trial import TrialFailure

_POLL_S = 0.005


class RaceProcess:
    """One process of the program. `messages` yields what it answers, until it has ended."""

    def __init__(self, target: Target, plan: RacePlan, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.compiled = (home / COMPILED).absolute()
        """Folder of what the race compiles: a process that proves it finds it there."""
        self._directory = Path(tempfile.mkdtemp(prefix="race-", dir=home))
        self._program = FreshProgram(
            target, self._directory, "ridgeline.harness.race.begin", plan,
            seed=plan.seed, compiled=self.compiled,
        )  # fmt: skip
        self._child = self._program.start()
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
            ended = not self._child.is_running
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
        return self._child.is_running

    def failure(self) -> Reason | None:
        """Return why the program ended; None if it ended by itself without an error."""
        code = self._child.process.poll()
        if code == 0:
            return None
        if code is None:
            return because(TrialFailure.TIMED_OUT, limit_s=0.0, step=None)
        ended = Ended(code=code, wall_ns=0, last_lines=self._child.last_lines())
        return failure_of(ended, 0.0, self._directory)

    def end(self, patience_s: float = 2.0) -> None:
        """End the program and whatever it has started."""
        if self.is_running:
            self.ask(RaceRequest(number=0, end=True))
        self._child.end(patience_s)
        end_leftovers(IN_A_TRIAL, self._program.mark)
