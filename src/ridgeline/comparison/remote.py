"""A host in a child process, asked over a pipe.

Whatever a workload does to its process, this one lives on: a child that raises answers with the
sentence, one that exits or crashes is told by its exit code, one that hangs is killed with its
whole group. What it prints goes to a file, whose end is shown if something went wrong.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from ridgeline.comparison.arms import Options
from ridgeline.comparison.messages import (
    Answer,
    Collected,
    Examined,
    Opened,
    Peak,
    Question,
    SkippedError,
    Warmed,
)
from ridgeline.errors import RidgelineError, TargetError
from ridgeline.measure.deadline import BudgetEnded, Deadline
from ridgeline.measure.rounds import Block
from ridgeline.records.comparison import Guard, Surroundings

T = TypeVar("T")
_LINES_SHOWN = 6
DEFAULT_TIMEOUT_S = 300.0
_START_S = 300.0
"""For importing torch: 2 s as a rule, a minute from a cold network disk."""


class RemoteHost:
    """The same questions as `Host`'s, each with an answer, an error or a death."""

    def __init__(
        self, *, cold: bool, device: str | None, timeout_s: float, deadline: Deadline | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._deadline = deadline
        self._device = device
        self._doing, self._stage = "starting", "open"
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the child)
        questions, self._to_child = os.pipe()
        self._from_child, answers = os.pipe()
        environment = os.environ | ({} if device is None else _visible(device))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ridgeline.comparison.host_child", str(questions),
             str(answers), str(int(cold))],
            stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said,
            pass_fds=(questions, answers), env=environment,
            start_new_session=True,  # Ctrl-C is ours: the child must not die of it
        )  # fmt: skip
        os.close(questions)
        os.close(answers)
        self._buffer = b""
        self._asked = 0
        self._ready = False
        self._names: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child, its threads and its own children."""
        for end in (self._to_child, self._from_child):
            with contextlib.suppress(OSError):
                os.close(end)
        if not self._is_over():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1.0)  # DataLoader workers end well when asked to
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._said.close()

    def open(self, arm: str, target: str, seed: int) -> Opened:
        self._names[arm] = target
        return self._ask(
            Opened, "open", arm, arm=arm, target=target, seed=seed, device=self._device
        )

    def collect(
        self, arm: str, seed: int, as_baseline: bool, budget_s: float | None = None
    ) -> Collected:
        return self._ask(
            Collected, "collect", arm, arm=arm, seed=seed, as_baseline=as_baseline,
            budget_s=budget_s,
        )  # fmt: skip

    def first_calls(self, arm: str) -> Collected:
        return self._ask(Collected, "first_calls", arm, arm=arm)

    def save(self, arm: str, path: str) -> None:
        self._ask(type(None), "save", arm, arm=arm, path=path)

    def load(self, arm: str, path: str) -> None:
        self._ask(type(None), "load", arm, arm=arm, path=path)

    def examine(self, candidate: str, rtol: float | None, check_in: str) -> Examined:
        return self._ask(
            Examined, "examine", candidate, candidate=candidate, rtol=rtol, check_in=check_in
        )

    def look_again(self, arm: str, seed: int, budget_s: float | None = None) -> None:
        self._ask(type(None), "look_again", arm, arm=arm, seed=seed, budget_s=budget_s)

    def replays(self, candidate: str) -> Guard:
        return self._ask(Guard, "replays", candidate, candidate=candidate)

    def floor(self, arm: str, measured_ns: float, may_measure: bool = True) -> Guard:
        return self._ask(
            Guard, "floor", arm, arm=arm, measured_ns=measured_ns, may_measure=may_measure
        )

    def warm_up(self, arm: str, limit_s: float) -> Warmed:
        return self._ask(Warmed, "warm_up", arm, arm=arm, limit_s=limit_s)

    def resize(self, arm: str, calls: int) -> None:
        self._ask(type(None), "resize", arm, arm=arm, calls=calls)

    def block(self, arm: str) -> Block:
        return self._ask(Block, "block", arm, arm=arm)

    def peak(self, arm: str) -> Peak:
        return self._ask(Peak, "peak", arm, arm=arm)

    def recompiles(self, arm: str) -> int:
        return self._ask(int, "recompiles", arm, arm=arm)

    def begin_rounds(self) -> None:
        self._ask(type(None), "begin_rounds", "")

    def end_rounds(self) -> Surroundings:
        return self._ask(Surroundings, "end_rounds", "")

    def printed_lines(self) -> int:
        """How much the workloads printed so far."""
        self._said.seek(0)
        return sum(chunk.count(b"\n") for chunk in iter(lambda: self._said.read(1 << 20), b""))

    def _ask(self, kind: type[T], method: str, about: str, **arguments: Any) -> T:
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
        return msgspec.convert(answer.value, kind)

    def _answer(self) -> Answer:
        """The next answer. A sign of life (a call came back) starts the wait anew."""
        deadline = monotonic() + (self._timeout_s if self._ready else _START_S)
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
            self._process.wait(timeout=2.0)
        code = self._process.poll()
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (often: out of memory)"
        else:
            how = f"ended its process (exit code {code})"
        return TargetError(f"{self._doing} {how}", self._last_words())

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = [line for line in self._said.read().decode(errors="replace").splitlines() if line]
        return "\n  ".join(["it said:", *lines[-_LINES_SHOWN:]]) if lines else ""


def remote_for(options: Options) -> RemoteHost:
    return RemoteHost(
        cold=options.cold,
        device=options.device,
        timeout_s=options.timeout_s or DEFAULT_TIMEOUT_S,
        deadline=options.deadline,
    )


def _visible(device: str) -> dict[str, str]:
    kind, _, index = device.partition(":")
    return {"CUDA_VISIBLE_DEVICES": "" if kind == "cpu" else index or "0"}
