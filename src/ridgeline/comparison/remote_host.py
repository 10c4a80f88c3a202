"""A host in a child process, asked over a pipe: both ends of it.

Whatever a workload does to its process, the asking one lives on: a child that raises answers with
the sentence, one that exits or crashes is reported with its exit code, one that hangs is killed
with its whole group. What it prints goes to a file, whose end is shown if something went wrong.

The child runs `python -m ridgeline.comparison.remote_host QUESTIONS ANSWERS COLD` with two
descriptors.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import unittest
from time import monotonic
from types import NoneType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ridgeline import errors
from ridgeline.comparison.contenders import (
    Collected,
    Examined,
    Opened,
    Options,
    Peak,
    SkippedError,
    Warmed,
)
from ridgeline.errors import RidgelineError, TargetError
from ridgeline.harness.usercode.child_process import Child, visible_device
from ridgeline.measure.clock import BudgetEnded, Deadline
from ridgeline.measure.timing import Block
from ridgeline.records.comparison import Guard, Surroundings

if TYPE_CHECKING:  # it brings torch, which the asking process does without
    from ridgeline.comparison.host import Host

DEFAULT_TIMEOUT_S = 300.0
START_TIMEOUT_S = 300.0
"""Time limit for importing torch: 2 s as a rule, a minute from a cold network disk."""
PULSE_S = 2.0
"""How often a child says that calls come back."""
_ANSWERS: dict[str, type] = {
    "open": Opened, "collect": Collected, "first_calls": Collected, "examine": Examined,
    "replays": Guard, "floor": Guard, "warm_up": Warmed, "block": Block, "peak": Peak,
    "recompiles": int, "end_rounds": Surroundings,
}  # fmt: skip
"""What each method of a `Host` returns; the others return nothing."""


class Trouble(Struct, frozen=True):
    """A RidgelineError, to be raised at the other end."""

    kind: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: errors.RidgelineError) -> "Trouble":
        return cls(type(error).__name__, error.message, error.hint)

    def raised(self) -> errors.RidgelineError:
        kind = getattr(errors, self.kind, errors.RidgelineError)
        error = kind(self.message, self.hint)
        assert isinstance(error, errors.RidgelineError)
        return error


class Question(Struct, frozen=True, kw_only=True):
    number: int
    method: str
    arguments: dict[str, Any]


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    number: int = 0
    value: Any = None
    error: Trouble | None = None
    skipped: str | None = None
    alive: bool = False
    """No answer yet, but calls came back since the last one."""


class RemoteHost:
    """Asks a `Host` in a child process; each question ends with an answer, an error or a death."""

    def __init__(
        self, *, cold: bool, device: str | None, timeout_s: float, deadline: Deadline | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._deadline = deadline
        self._device = device
        self._doing, self._stage = "starting", "open"
        questions, self._to_child = os.pipe()
        self._from_child, answers = os.pipe()
        self._child = Child(
            [sys.executable, "-m", "ridgeline.comparison.remote_host", str(questions),
             str(answers), str(int(cold))],
            os.environ | visible_device(device), pass_fds=(questions, answers),
        )  # fmt: skip
        os.close(questions)
        os.close(answers)
        self._buffer = b""
        self._asked = 0
        self._ready = False
        self._names: dict[str, str] = {}

    def close(self) -> None:
        """End the child, its threads and its own children."""
        for end in (self._to_child, self._from_child):
            with contextlib.suppress(OSError):
                os.close(end)
        # DataLoader workers end well when asked to.
        self._child.end(0.0 if self._is_over() else 1.0)

    def printed_lines(self) -> int:
        """Return how many lines the workloads have printed so far."""
        return self._child.printed_lines()

    def ask(self, method: str, **arguments: Any) -> Any:
        """Ask the `Host` in the child; its answer has the type that the method returns."""
        about = str(arguments.get("variant") or arguments.get("candidate") or "")
        if method == "open":
            self._names[about] = arguments["target"]
            arguments["device"] = self._device
        self._doing, self._stage = self._names.get(about, about), method
        if self._is_over():
            raise BudgetEnded(method, self._doing)
        self._asked += 1
        question = Question(number=self._asked, method=method, arguments=arguments)
        try:
            os.write(self._to_child, msgspec.json.encode(question) + b"\n")
        except BrokenPipeError:
            raise self._died() from None
        answer = self._answer()
        if answer.skipped is not None:
            raise SkippedError(answer.skipped)
        if answer.error is not None:
            raise answer.error.raised()
        return msgspec.convert(answer.value, _ANSWERS.get(method, NoneType))

    def _answer(self) -> Answer:
        """Return the next answer. A sign of life (a call came back) starts the wait anew."""
        deadline = monotonic() + (self._timeout_s if self._ready else START_TIMEOUT_S)
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                answer = msgspec.json.decode(line, type=Answer)
                if answer.number == self._asked:  # else a pulse, or one Ctrl-C cut short
                    return answer
                self._ready = True
                deadline = monotonic() + self._timeout_s
                continue
            left = deadline - monotonic()
            within = left if self._deadline is None else min(left, self._deadline.left_s())
            if within <= 0 or not select.select([self._from_child], [], [], within)[0]:
                raise BudgetEnded(self._stage, self._doing) if within < left else self._hangs()
            chunk = os.read(self._from_child, 1 << 16)
            if not chunk:
                raise self._died()
            self._buffer += chunk

    def _is_over(self) -> bool:
        return self._deadline is not None and self._deadline.left_s() <= 0

    def _hangs(self) -> RidgelineError:
        return TargetError(
            f"{self._doing} has not come back in {self._timeout_s:g} s",
            "if it needs longer, allow it with --timeout",
        )

    def _died(self) -> RidgelineError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.process.wait(timeout=2.0)
        code = self._child.process.poll()
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (often: out of memory)"
        else:
            how = f"ended its process (exit code {code})"
        lines = self._child.last_lines()
        said = "\n  ".join(["it said:", *lines]) if lines else ""
        return TargetError(f"{self._doing} {how}", said)


def remote_for(options: Options) -> RemoteHost:
    return RemoteHost(
        cold=options.cold,
        device=options.device,
        timeout_s=options.timeout_s or DEFAULT_TIMEOUT_S,
        deadline=options.deadline,
    )


class _Answers:
    """The descriptor that answers go to, shared with the pulse."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, answer: Answer) -> None:
        data = msgspec.json.encode(answer) + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


def main() -> None:
    questions, answers, cold = (int(text) for text in sys.argv[1:4])
    sys.argv = ["ridgeline-workload"]
    sys.path[0] = ""  # a workload's imports see the folder it was asked for in, not ours
    line = _Answers(answers)
    # The import comes after the pipe: a torch that fails to load is told, not found dead.
    from ridgeline.comparison.host import Host

    host = Host(cold=bool(cold))
    threading.Thread(target=_pulse, args=(host, line), name="ridgeline-pulse", daemon=True).start()
    line.send(Answer(alive=True))  # ready: importing torch is nobody's hang
    with open(questions, "rb") as asked:
        for text in asked:
            question = msgspec.json.decode(text, type=Question)
            answer = _answered(host, question)
            line.send(msgspec.structs.replace(answer, number=question.number))
    os._exit(0)  # threads a workload left behind must not keep the process


def _answered(host: "Host", question: Question) -> Answer:
    try:
        value = host.ask(question.method, **question.arguments)
        return Answer(value=msgspec.to_builtins(value))
    except unittest.SkipTest as skipped:
        return Answer(skipped=str(skipped) or "no reason given")
    except RidgelineError as error:
        cause = error.__cause__
        if isinstance(cause, unittest.SkipTest):
            return Answer(skipped=str(cause) or "no reason given")
        return Answer(error=Trouble.of(error))
    except Exception as error:  # a fault of ours: the sentence, and where
        import traceback

        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        words = f"internal error in {question.method}, {type(error).__name__} at {where}: {error}"
        return Answer(error=Trouble("RidgelineError", words, "this is a fault in ridgeline"))


def _pulse(host: "Host", line: _Answers) -> None:
    seen, done = 0, threading.Event()
    while not done.wait(PULSE_S):
        if host.calls_made != seen:
            seen = host.calls_made
            try:
                line.send(Answer(alive=True))
            except OSError:
                return


if __name__ == "__main__":
    main()
