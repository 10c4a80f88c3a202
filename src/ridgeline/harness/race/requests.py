"""Defines how a race is asked what to measure, and how it answers.

A program in a process of its own reads requests from files and answers in a file. A step function
is raced in the process of whoever asks, so its requests and answers are lists.
"""

import time
from collections import deque
from pathlib import Path
from typing import Protocol

import msgspec

from ridgeline.records.race import RaceMessage, RaceRequest

POLL_S = 0.002
MAX_IDLE_S = 120.0
"""A program without a request for this long ends: whoever asks is gone."""
ANSWERS = "answers.jsonl"


def request_file(directory: Path, number: int) -> Path:
    return directory / f"request-{number}.json"


class Requests(Protocol):
    """The requests and answers of a race, as the raced program sees them."""

    def is_waiting(self) -> bool:
        """Return whether there is a request that was not taken yet."""

    def take(self) -> RaceRequest | None:
        """Return the next request; None if the program has to take a step before it is asked."""

    def answer(self, message: RaceMessage) -> None: ...


class FileRequests:
    """Requests of another process, in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._taken = 0
        self._answers = (directory / ANSWERS).open("ab", buffering=0)

    def is_waiting(self) -> bool:
        return request_file(self._directory, self._taken + 1).exists()

    def take(self) -> RaceRequest | None:
        """Return the next request. Wait for it: the program takes no step meanwhile."""
        deadline = time.monotonic() + MAX_IDLE_S
        while time.monotonic() < deadline:
            if self.is_waiting():
                self._taken += 1
                data = request_file(self._directory, self._taken).read_bytes()
                return msgspec.json.decode(data, type=RaceRequest)
            time.sleep(POLL_S)
        return RaceRequest(number=0, end=True)

    def answer(self, message: RaceMessage) -> None:
        self._answers.write(msgspec.json.encode(message) + b"\n")


class ListedRequests:
    """Requests of the same process, which lets the program take its steps one by one."""

    def __init__(self) -> None:
        self.waiting: deque[RaceRequest] = deque()
        self.answers: deque[RaceMessage] = deque()

    def is_waiting(self) -> bool:
        return bool(self.waiting)

    def take(self) -> RaceRequest | None:
        return self.waiting.popleft() if self.waiting else None

    def answer(self, message: RaceMessage) -> None:
        self.answers.append(message)
