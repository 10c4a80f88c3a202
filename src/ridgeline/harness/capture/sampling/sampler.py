"""A thread that notes, every few milliseconds, which Python line the program is at.

It reads `sys._current_frames()`: no signal, no profile function, nothing on the program's own
threads. Time inside C (a sleep, a decode, a wait on a queue) falls on the Python line that called
it; where a line neither calls nor loops, time may show one line further on. In workers, and where
the user asked for it, the interpreter's switch interval is shorter while it runs: the one thing a
program could notice.
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

from ridgeline.harness.capture.lock import EXIT_WAIT_S
from ridgeline.harness.capture.sampling.patience import at_ease, hurry
from ridgeline.harness.capture.sampling.stacks import as_text, walk
from ridgeline.harness.capture.sampling.thread_time import ThreadTime
from ridgeline.records.run import OTHERS, Sampled

INTERVAL_NS = 10_000_000
"""Between samples on average; each pause is drawn from two thirds to four thirds of it, so that the
samples do not march in step with a loop of the same length."""
FLUSH_NS = 1_000_000_000
LONGEST_NS = 600 * 1_000_000_000
MOST_BYTES = 16 * 2**20
UNASKED_NS = 120 * 1_000_000_000
UNASKED_BYTES = 2 * 2**20
"""In a run that did not ask to be sampled: enough for rules to find the costly line."""
MOST_STACKS = 10_000
_RESERVE = 2**18
"""Kept for lines that only say how many samples there were, once the file is full: 600 of 200 B."""
_MOST_THREADS = 4
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}

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
        asked: bool = True,
    ) -> None:
        """`beneath`: frames from this function outwards are not the process's own (a forked worker
        stands on its parent's stack). `over` is asked once a second whether to end. `asked`: the
        user wants it; else it is shorter, and the program keeps its switch interval."""
        self.problem = ""
        self._to = to
        self._process: Literal["main", "worker"] = process
        self._worker = worker
        self._interval_ns = max(interval_ns, 1_000_000)
        self._beneath = beneath
        self._over = over
        self._hurries = asked or process == "worker"
        self._longest_ns = LONGEST_NS if asked else UNASKED_NS
        self._most_bytes = MOST_BYTES if asked else UNASKED_BYTES
        self._random = random.Random()  # its own: the program's streams stay where they are
        self._pid = 0
        self._watched: tuple[ThreadTime, ...] = ()
        self._gate = _thread.allocate_lock()
        self._done = _thread.allocate_lock()
        self._rest = 0.0
        self._codes: dict[int, CodeType] = {}
        self._seen: set[int] = set()
        self._bytes = 0
        self._stopped = False
        self._began_ns = 0

    def start(self) -> None:
        if self._pid:
            return
        try:
            main = threading.main_thread()
            self._began_ns = monotonic_ns()
            if self._process == "worker" or main.ident is None:
                self._watched = (_here(),)
            else:
                self._watched = (ThreadTime(main.ident, main.native_id, self._began_ns),)
            self._gate.acquire()
            self._done.acquire()
            if self._hurries:
                hurry()
            # Not a threading.Thread: the program's list and count of threads stay as they are.
            _thread.start_new_thread(self._run, ())
            self._pid = os.getpid()
            if self._process == "main":
                atexit.register(self.stop)
        except Exception as fault:
            at_ease()
            self.problem = f"the Python sampler did not start: {fault!r}"

    def stop(self) -> None:
        """Ends the thread and writes what is left; in a forked child, which has no such thread,
        nothing."""
        if self._stopped or self._pid != os.getpid():
            return
        self._stopped = True
        try:
            self._gate.release()
            self._done.acquire(timeout=EXIT_WAIT_S)  # a disk that hangs does not hold the program
        except Exception as fault:
            self.problem = f"the Python sampler did not end: {fault!r}"

    def watch_this_thread(self) -> None:
        """Looks at the calling thread too: the one that trains."""
        known = [watched.thread for watched in self._watched]
        if self._pid != os.getpid() or threading.get_ident() in known:
            return
        if len(known) < _MOST_THREADS:
            self._watched = (*self._watched, _here())

    # ------------------------------------------------------------ on its own thread

    def _run(self) -> None:
        try:
            block_signals()
            self._loop()
        except BaseException as fault:
            self.problem = f"the Python sampler ended early: {fault!r}"
        finally:
            at_ease()
            self._done.release()

    def _loop(self) -> None:
        flushed = self._began_ns
        every = FLUSH_NS // 4  # a short life leaves something too
        while not self._gate.acquire(timeout=self._pause()):
            self._look()
            now = monotonic_ns()
            if now - flushed >= every:
                flushed, every = now, min(2 * every, FLUSH_NS)
                self._flush(now)
                if now - self._began_ns >= self._longest_ns or self._over():
                    return
        self._flush(monotonic_ns())

    def _pause(self) -> float:
        return self._interval_ns * 1e-9 * self._random.uniform(2 / 3, 4 / 3)

    def _look(self) -> None:
        for place, watched in enumerate(self._watched):
            # The dict of all frames holds this very frame: it is let go before anything else.
            frame = sys._current_frames().get(watched.thread)
            if frame is None or frame.f_code.co_filename == __file__:  # ended; in our own stop()
                continue
            # The main thread waiting for the one that trains is no work of the program's.
            idle = place == 0 and len(self._watched) > 1 and _waits_in_threading(frame)
            key = walk(frame, self._codes, self._beneath)
            del frame
            watched.add(None if idle else key)

    def _flush(self, now: int) -> None:
        codes, self._codes = self._codes, {}
        named: dict[tuple[int, int], str] = {}
        spent: dict[tuple[str, ...], float] = {}
        for watched in self._watched:
            for key, ns in watched.settle().items():
                frames = self._known(as_text(key, codes, named))
                spent[frames] = spent.get(frames, 0.0) + ns
        stacks = self._counted(spent)
        if not stacks:
            return
        line = self._line(now, stacks)
        if self._bytes + len(line) > self._most_bytes - _RESERVE:
            line = self._line(now, {(OTHERS,): sum(stacks.values())})
        self._bytes += len(line)
        if isinstance(self._to, Path):
            _append(self._to / f"python-{os.getpid()}.jsonl", line)
        else:
            self._to(line)

    def _counted(self, spent: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], int]:
        """Whole samples; what is left over is handed on, so that none of the time gets lost."""
        found: dict[tuple[str, ...], int] = {}
        for frames, ns in spent.items():
            whole, self._rest = divmod(self._rest + ns, self._interval_ns)
            if whole:
                found[frames] = int(whole)
        return found

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


def block_signals() -> None:
    """Block signals in the calling thread, which is one of ours, so that they go to the program's
    own threads."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)


def _here() -> ThreadTime:
    return ThreadTime(threading.get_ident(), threading.get_native_id(), monotonic_ns())


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
