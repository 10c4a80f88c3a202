"""The other end of `RemoteHost`: a process that holds workloads and answers questions about them.

Run as `python -m ridgeline.comparison.host_child QUESTIONS ANSWERS COLD` with two descriptors.
"""

import os
import sys
import threading
import unittest
from typing import Any

import msgspec

from ridgeline.comparison.messages import Answer, Question, Trouble
from ridgeline.errors import RidgelineError

_PULSE_S = 2.0


class _Line:
    """The way out, shared with the pulse."""

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
    line = _Line(answers)
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


def _answered(host: Any, question: Question) -> Answer:
    try:
        value = getattr(host, question.method)(**question.arguments)
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


def _pulse(host: Any, line: _Line) -> None:
    seen, done = 0, threading.Event()
    while not done.wait(_PULSE_S):
        if host.calls_made != seen:
            seen = host.calls_made
            try:
                line.send(Answer(alive=True))
            except OSError:
                return


if __name__ == "__main__":
    main()
