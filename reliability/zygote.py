"""The process that forks one small training a fault: `inject/zygote.py`, asked line by line."""

import json
import os
import subprocess
import threading
from collections import Counter
from pathlib import Path

from reliability.case import HERE
from reliability.outcome import python, surroundings

INJECT = Path(__file__).parent / "inject"
TARGET = HERE / "fault_target.py"


class Zygote:
    """The process that forks one small training a fault; one for all jobs, in turn."""

    def __init__(self) -> None:
        self._turn = threading.Lock()

    def __enter__(self) -> "Zygote":
        env = surroundings({"PYTHONPATH": str(INJECT)})
        self._process = subprocess.Popen(
            [python(), str(INJECT / "zygote.py"), str(TARGET)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True, cwd=os.sep,
        )  # fmt: skip
        self.plain = self.ask("plain")
        return self

    def __exit__(self, *rest: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def ask(self, line: str) -> dict[str, object]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer: dict[str, object] = json.loads(self._process.stdout.readline())
            return answer

    def counted(self) -> Counter[str]:
        calls = self.ask("count")["calls"]
        assert isinstance(calls, list)
        return Counter(calls)
