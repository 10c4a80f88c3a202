"""A thread that notes, every few milliseconds, which Python line the program is at.

It reads `sys._current_frames()`: no signal, no profile function, nothing on the program's own
threads. Time inside C (a sleep, a decode, a wait on a queue) falls on the Python line that called
it. A sample counts for the time since the one before, so that a C call that keeps the interpreter's
lock for a second, and lets nobody look, weighs a second. Where a line neither calls nor loops, time
under that lock may show one line further on. While it runs the interpreter's switch interval is
shorter: the one thing a program could notice.
"""

import _thread
import atexit
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from types import CodeType, FrameType
from typing import Literal

import msgspec

from ridgeline.records.python_view import CUT, DEEPEST, OTHERS, Sampled

INTERVAL_NS = 7_500_000
"""Between samples on average; each pause is drawn from two thirds to four thirds of it, so that the
samples do not march in step with a loop of the same length."""
FLUSH_NS = 1_000_000_000
LONGEST_NS = 600 * 1_000_000_000
MOST_BYTES = 16 * 2**20
MOST_STACKS = 10_000
_HEAVIEST_NS = 10 * 1_000_000_000
"""One sample stands for this much at most: a stopped process (Ctrl-Z) is nobody's line."""
_RESERVE = 2**18
"""Kept for lines that only say how many samples there were, once the file is full: 600 of 200 B."""
_FURTHEST = 512
"""Frames walked; 50 ns each."""
_OUTER = 15
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}

Key = tuple[int, ...]
"""A stack, innermost first: a code object's id and the instruction in it, in turn. Code objects
themselves compare by value, without their file: the same helper in two files would be one."""

_PATIENCE_S = 0.0005
"""How long the thread waits for the interpreter's lock before it is handed over. At Python's own
5 ms a program that computes for 8 ms and sleeps for 2 was seen asleep in 70 % of the samples: the
lock came free by itself, at the sleep, before the wait was over."""
_before: list[float] = []
"""The program's own switch interval, while ours is in force."""

_encode = msgspec.json.Encoder().encode


class Sampler:
    """Samples one process to `to`: a folder (into python-<pid>.jsonl) or a function of a line.

    Nothing is raised into the program; a fault of ours is told by `problem`.
    """

    def __init__(
        self,
        to: Path | Callable[[bytes], None],
        process: Literal["main", "worker"] = "main",
        worker: int = -1,
        interval_ns: int = INTERVAL_NS,
        *,
        beneath: CodeType | None = None,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`beneath`: frames from this function outwards are not the process's own (a forked worker
        stands on its parent's stack). `over` is asked once a second whether to end."""
        self.problem = ""
        self._to = to
        self._process: Literal["main", "worker"] = process
        self._worker = worker
        self._interval_ns = max(interval_ns, 1_000_000)
        self._beneath = beneath
        self._over = over
        self._random = random.Random()  # its own: the program's streams stay where they are
        self._pid = 0
        self._watched: tuple[int, ...] = ()
        self._gate = _thread.allocate_lock()
        self._done = _thread.allocate_lock()
        self._counts: dict[Key, int] = {}
        self._codes: dict[int, CodeType] = {}
        self._seen: set[int] = set()
        self._bytes = 0
        self._stopped = False
        self._began_ns = 0

    def start(self) -> None:
        if self._pid:
            return
        try:
            main = threading.main_thread().ident
            here = threading.get_ident()
            self._watched = (here if self._process == "worker" or main is None else main,)
            self._gate.acquire()
            self._done.acquire()
            self._began_ns = monotonic_ns()
            _hurry()
            # Not a threading.Thread: the program's list and count of threads stay as they are.
            _thread.start_new_thread(self._run, ())
            self._pid = os.getpid()
            if self._process == "main":
                atexit.register(self.stop)
        except Exception as fault:
            _at_ease()
            self.problem = f"the Python sampler did not start: {fault!r}"

    def stop(self) -> None:
        """Ends the thread and writes what is left; in a forked child, which has no such thread,
        nothing."""
        if self._stopped or self._pid != os.getpid():
            return
        self._stopped = True
        try:
            self._gate.release()
            self._done.acquire(timeout=2.0)  # a disk that hangs does not hold the program
        except Exception as fault:
            self.problem = f"the Python sampler did not end: {fault!r}"

    def watch(self, thread: int) -> None:
        """Looks at this thread too (`threading.get_ident()` where the program trains)."""
        if self._pid == os.getpid() and thread not in self._watched and len(self._watched) < 4:
            self._watched = (*self._watched, thread)

    # ------------------------------------------------------------ on its own thread

    def _run(self) -> None:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
            self._loop()
        except BaseException as fault:
            self.problem = f"the Python sampler ended early: {fault!r}"
        finally:
            _at_ease()
            self._done.release()

    def _loop(self) -> None:
        before = flushed = self._began_ns
        every = FLUSH_NS // 4  # a short life leaves something too
        owed = 0
        while not self._gate.acquire(timeout=self._pause()):
            now = monotonic_ns()
            owed += min(now - before, _HEAVIEST_NS)
            before = now
            weight, owed = divmod(owed, self._interval_ns)
            if weight:
                self._look(weight)
            if now - flushed >= every:
                flushed, every = now, min(2 * every, FLUSH_NS)
                self._flush(now)
                if now - self._began_ns >= LONGEST_NS or self._over():
                    return
        self._flush(monotonic_ns())

    def _pause(self) -> float:
        return self._interval_ns * 1e-9 * self._random.uniform(2 / 3, 4 / 3)

    def _look(self, weight: int) -> None:
        for place, thread in enumerate(self._watched):
            # The dict of all frames holds this very frame: it is let go before anything else.
            frame = sys._current_frames().get(thread)
            if frame is None:
                continue
            if place == 0 and len(self._watched) > 1 and _waits_in_threading(frame):
                continue  # the main thread waits for the one that trains: that is no work
            key = _walk(frame, self._codes, self._beneath)
            del frame
            self._counts[key] = self._counts.get(key, 0) + weight

    def _flush(self, now: int) -> None:
        counts, codes = self._counts, self._codes
        self._counts, self._codes = {}, {}
        if not counts:
            return
        named: dict[tuple[int, int], str] = {}
        stacks: dict[tuple[str, ...], int] = {}
        for key, times in counts.items():
            frames = self._known(_frames(key, codes, named))
            stacks[frames] = stacks.get(frames, 0) + times
        line = self._line(now, stacks)
        if self._bytes + len(line) > MOST_BYTES - _RESERVE:
            line = self._line(now, {(OTHERS,): sum(stacks.values())})
        self._bytes += len(line)
        if isinstance(self._to, Path):
            _append(self._to / f"python-{self._pid or os.getpid()}.jsonl", line)
        else:
            self._to(line)

    def _known(self, frames: tuple[str, ...]) -> tuple[str, ...]:
        mark = hash(frames)
        if mark not in self._seen:
            if len(self._seen) >= MOST_STACKS:
                return (OTHERS,)
            self._seen.add(mark)
        return frames

    def _line(self, now: int, stacks: dict[tuple[str, ...], int]) -> bytes:
        record = Sampled(
            pid=os.getpid(),
            process=self._process,
            worker=self._worker,
            at_ns=now,
            samples=sum(stacks.values()),
            interval_ns=self._interval_ns,
            stacks=tuple(stacks.items()),
        )
        return _encode(record) + b"\n"


def _hurry() -> None:
    own = sys.getswitchinterval()
    if not _before and own > _PATIENCE_S:
        _before.append(own)
        sys.setswitchinterval(_PATIENCE_S)


def _at_ease() -> None:
    """As it was, unless the program has set it since."""
    while _before:
        own = _before.pop()
        if abs(sys.getswitchinterval() - _PATIENCE_S) < 1e-7:
            sys.setswitchinterval(own)


os.register_at_fork(after_in_child=_at_ease)


def _walk(frame: FrameType, codes: dict[int, CodeType], beneath: CodeType | None) -> Key:
    """Of a deep stack both ends are kept: what runs, and whose call it began with."""
    key: list[int] = []
    at: FrameType | None = frame
    while at is not None and len(key) < 2 * _FURTHEST:
        code = at.f_code
        if code is beneath:
            break
        ident = id(code)
        codes[ident] = code  # kept until the flush, so that its id is nobody else's
        key.append(ident)
        key.append(at.f_lasti)  # the line is looked up later: here it would cost microseconds
        at = at.f_back
    if len(key) > 2 * DEEPEST:
        key[2 * (DEEPEST - _OUTER - 1) : -2 * _OUTER] = (0, 0)
    return tuple(key)


def _frames(
    key: Key, codes: dict[int, CodeType], named: dict[tuple[int, int], str]
) -> tuple[str, ...]:
    """Outermost first, as text."""
    found: list[str] = []
    for ident, instruction in zip(key[::2], key[1::2], strict=True):
        text = named.get((ident, instruction))
        if text is None:
            text = _named(codes[ident], instruction) if ident else CUT
            named[ident, instruction] = text
        found.append(text)
    return tuple(reversed(found))


def _named(code: CodeType, instruction: int) -> str:
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end:
            line = number if number is not None else line
            break
    text = f"{code.co_filename[-1000:]}:{line}:{code.co_qualname[-200:]}"
    # A file's name may hold bytes that are no text: JSON cannot.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _waits_in_threading(frame: FrameType) -> bool:
    return frame.f_code.co_filename == threading.__file__


def _append(path: Path, line: bytes) -> None:
    how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(path, how, 0o644)
    try:
        left = memoryview(line)
        while left:
            left = left[os.write(file, left) :]
    finally:
        os.close(file)
