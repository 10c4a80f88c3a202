"""A race of a step function, in the process of whoever calls: its steps are taken one by one, for
as long as the race asks for more."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ridgeline.fixes.fix import compiles_first
from ridgeline.harness.race.requests import ListedRequests
from ridgeline.harness.race.session import RaceSession
from ridgeline.harness.trials.trial_process import COMPILED
from ridgeline.harness.usercode.load import first_words
from ridgeline.optimization.bench import MIN_TRIAL_S
from ridgeline.optimization.function_program import Batches, StepSubject, end_session, process_lent
from ridgeline.optimization.function_state import SavedState, time_limit
from ridgeline.optimization.race import COMPILING_LIMIT_S, SET_UP_LIMIT_S, SLOW_FACTOR
from ridgeline.records.facts import Reason, because
from ridgeline.records.race import RaceMessage, RacePlan, RaceRequest
from ridgeline.records.trial import TrialFailure


class FunctionRaceProcess:
    """The steps of a step function, raced as the steps of a program in a process of its own are.
    `end` restores everything that they changed."""

    def __init__(
        self, torch: Any, subject: StepSubject, plan: RacePlan, home: Path, state: SavedState,
        left_s: Callable[[], float],
    ) -> None:  # fmt: skip
        """`left_s` returns the time until the whole call must be over."""
        home.mkdir(parents=True, exist_ok=True)
        self.compiled = home / COMPILED
        self._torch = torch
        self._subject = subject
        self._left_s = left_s
        self._requests = ListedRequests()
        self._asked = 0
        self._longest_step_s = 0.0
        self._failure: Reason | None = None
        self._is_running = True
        self._undo = contextlib.ExitStack()
        directory = Path(tempfile.mkdtemp(prefix="race-", dir=home))
        try:
            self._begin(plan, directory, state)
        except BaseException:
            self._undo.close()
            raise

    def _begin(self, plan: RacePlan, directory: Path, state: SavedState) -> None:
        self._undo.enter_context(
            process_lent(self._torch, state, plan.functions, self.compiled, compiles=True)
        )
        self._session = RaceSession(self._torch, directory, plan, self._requests, self._stop)
        self._session.end_steps_when_told()
        self._batches = Batches(self._subject.loader)
        self._undo.callback(self._batches.close)
        self._undo.callback(self._leave)  # before that: workers that are stopped cannot end
        self._session.begin()

    def _leave(self) -> None:
        """Take the race off the process."""
        self._session.leave()
        end_session(self._session)

    def _stop(self) -> None:
        self._is_running = False

    def ask(self, request: RaceRequest) -> int:
        """Put a request before the race. Return its number."""
        self._asked += 1
        self._requests.waiting.append(replace(request, number=self._asked))
        return self._asked

    def messages(self, deadline_s: float) -> Iterator[RaceMessage | None]:
        """Take steps, and yield what is answered meanwhile; None where a step brought no answer.
        End when the race is over, or at `deadline_s` of the monotonic clock."""
        while True:
            answers = self._requests.answers
            if not answers:
                yield None
            while answers:
                yield answers.popleft()
            if not self._is_running or time.monotonic() > deadline_s:
                return
            self._take_step()

    def _take_step(self) -> None:
        began_s = time.monotonic()
        try:
            with time_limit(self._limit_s()):
                self._subject.call(next(self._batches))
                self._session.user_ended_step()
        except Exception as error:
            text = f"{type(error).__name__}: {first_words(error)}"[:300]
            self._failure = because(TrialFailure.RAISED, error=text)
            self._is_running = False
        self._longest_step_s = max(self._longest_step_s, time.monotonic() - began_s)

    def _limit_s(self) -> float:
        """Return the time limit of a step. It is never 0, which would mean no limit."""
        left_s = max(self._left_s(), MIN_TRIAL_S)
        fixes = [one for layer in self._session.layers.on for one in layer.fixes]
        if not fixes:
            return left_s
        limit_s = COMPILING_LIMIT_S if compiles_first(fixes) else SET_UP_LIMIT_S
        return min(limit_s + SLOW_FACTOR * self._longest_step_s, left_s)

    @property
    def is_running(self) -> bool:
        return self._is_running

    def failure(self) -> Reason | None:
        """Return why the steps ended; None if they ended without an error."""
        return self._failure

    def end(self, patience_s: float = 0.0) -> None:
        """End the race, and put back everything that its steps changed."""
        self._is_running = False
        self._undo.close()
