"""The interpreter's switch interval, shorter while a sampler runs, so that it gets its turn."""

import _thread
import atexit
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from time import monotonic_ns, sleep
from types import CodeType, FrameType, ModuleType
from typing import Literal

import msgspec

from ridgeline.harness.capture.watch_lock import EXIT_WAIT_S
from ridgeline.records.run import MAX_STACK_FRAMES, OMITTED_FRAMES, OTHER_STACKS, Sampled

_SWITCH_INTERVAL_S = 0.0005
"""How long the thread waits for the interpreter's lock before it is handed over. At Python's own
5 ms a program that computes for 8 ms and sleeps for 2 was seen asleep in 70 % of the samples: the
lock came free by itself, at the sleep, before the wait was over."""
_program_switch_interval: list[float] = []
"""The program's own switch interval, while ours is in force."""


def shorten_switch_interval() -> None:
    own = sys.getswitchinterval()
    if not _program_switch_interval and own > _SWITCH_INTERVAL_S:
        _program_switch_interval.append(own)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)


def restore_switch_interval() -> None:
    """As it was, unless the program has set it since."""
    while _program_switch_interval:
        own = _program_switch_interval.pop()
        if abs(sys.getswitchinterval() - _SWITCH_INTERVAL_S) < 1e-7:
            sys.setswitchinterval(own)


os.register_at_fork(after_in_child=restore_switch_interval)


Key = tuple[int, ...]
"""A stack, innermost first: a code object's id and the instruction in it, in turn. Code objects
themselves compare by value, without their file: the same helper in two files would be one."""

_MAX_WALKED_FRAMES = 256
"""Frames walked; 0.4 µs each, under the interpreter's lock."""
_OUTERMOST_FRAMES = 15


def walk(frame: FrameType, codes: dict[int, CodeType], beneath: CodeType | None) -> Key:
    """Of a deep stack both ends are kept: what runs, and whose call it began with."""
    key: list[int] = []
    at: FrameType | None = frame
    while at is not None and len(key) < 2 * _MAX_WALKED_FRAMES:
        code = at.f_code
        if code is beneath:
            break
        ident = id(code)
        codes[ident] = code  # kept until the flush, so that its id is nobody else's
        key.append(ident)
        key.append(at.f_lasti)  # the line is looked up later: here it would cost microseconds
        at = at.f_back
    if len(key) > 2 * MAX_STACK_FRAMES:
        key[2 * (MAX_STACK_FRAMES - _OUTERMOST_FRAMES - 1) : -2 * _OUTERMOST_FRAMES] = (0, 0)
    return tuple(key)


def frame_texts(
    key: Key, codes: dict[int, CodeType], named: dict[tuple[int, int], str]
) -> tuple[str, ...]:
    """Outermost first, as text."""
    found: list[str] = []
    for ident, instruction in zip(key[::2], key[1::2], strict=True):
        text = named.get((ident, instruction))
        if text is None:
            text = _frame_text(codes[ident], instruction) if ident else OMITTED_FRAMES
            named[ident, instruction] = text
        found.append(text)
    return tuple(reversed(found))


def _frame_text(code: CodeType, instruction: int) -> str:
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end:
            line = number if number is not None else line
            break
    text = f"{code.co_filename[-1000:]}:{line}:{code.co_qualname[-200:]}"
    # A file's name may hold bytes that are no text: JSON cannot.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


_MAX_SAMPLE_WEIGHT_NS = 10 * 1_000_000_000
"""One sample stands for this much at most: a stopped process (Ctrl-Z) is nobody's line."""
_SECOND_LOOK_S = 0.0001
_MAX_SECOND_LOOKS = 3
"""Second looks at a place before it is taken to be one that works, or one that waits: each costs
the program about as much as a sample."""
_MAX_PLACES = 5_000


class ThreadTime:
    def __init__(self, thread: int, native: int | None, began_ns: int) -> None:
        """A thread of this process that is alive: its `ident` and its `native_id`."""
        self.thread = thread
        self._account = f"/proc/self/task/{native}/schedstat"
        try:
            self._clock: int | None = time.pthread_getcpuclockid(thread)
        except (AttributeError, OSError):  # no such clock here: all time weighs the same
            self._clock = None
        self._looked = self._settled = began_ns
        self._processor = self._processor_at_settling = self._processor_ns()
        self._in_line = self._queued_ns()
        self._places: dict[Key, tuple[int, int]] = {}
        """Of an instruction: second looks at it, and in how many it worked."""
        self._working: dict[Key, int] = {}
        self._waiting: dict[Key, int] = {}

    def add(self, key: Key | None) -> None:
        """A sample weighs the time since the one before: a call that keeps the interpreter's lock
        for a second is seen once, and weighs a second. None: that time is not to count."""
        now, processor = monotonic_ns(), self._processor_ns()
        passed = min(max(now - self._looked, 1), _MAX_SAMPLE_WEIGHT_NS)
        worked = processor - self._processor
        self._looked, self._processor = now, processor
        if key is None:
            return
        waits = worked < 0.05 * passed or not self._is_working(key[:2])
        seen = self._waiting if waits and self._clock is not None else self._working
        seen[key] = seen.get(key, 0) + passed

    def settle(self) -> dict[Key, float]:
        """Nanoseconds by stack, since this was last asked."""
        working, waiting = self._working, self._waiting
        self._working, self._waiting = {}, {}
        passed = sum(working.values()) + sum(waiting.values())
        worked = self._worked_ns(passed)
        if not working or not waiting or self._clock is None:
            return {**working, **waiting}
        scale = worked / sum(working.values())
        found = {key: weight * scale for key, weight in working.items()}
        scale = (passed - worked) / sum(waiting.values())
        for key, weight in waiting.items():
            found[key] = found.get(key, 0.0) + weight * scale
        return found

    def _worked_ns(self, passed: int) -> float:
        """Of `passed`, in the proportion that the system saw."""
        now, in_line, processor = monotonic_ns(), self._queued_ns(), self._processor_ns()
        worked = processor - self._processor_at_settling + max(in_line - self._in_line, 0)
        share = worked / max(now - self._settled, 1)
        self._settled, self._in_line, self._processor_at_settling = now, in_line, processor
        return passed * min(max(share, 0.0), 1.0)

    def _is_working(self, place: Key) -> bool:
        """A second look tells: the clock of a thread that waits stands still."""
        looks, working = self._places.get(place, (0, 0))
        if looks < _MAX_SECOND_LOOKS and self._clock is not None:
            sleep(_SECOND_LOOK_S)
            gone = monotonic_ns() - self._looked
            looks, working = (
                looks + 1,
                working + (self._processor_ns() - self._processor > 0.3 * gone),
            )
            if len(self._places) >= _MAX_PLACES:
                self._places.clear()
            self._places[place] = (looks, working)
        return 2 * working > looks

    def _processor_ns(self) -> int:
        if self._clock is None:
            return 0
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:  # the thread has ended
            self._clock = None
            return 0

    def _queued_ns(self) -> int:
        """Ready to run, and no processor free; 0 where the system does not tell."""
        try:
            file = os.open(self._account, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(file, 100).split()[1])
            finally:
                os.close(file)
        except (OSError, ValueError, IndexError):
            return 0


SAMPLE_INTERVAL_NS = 10_000_000
"""Between samples on average; each pause is drawn from two thirds to four thirds of it, so that the
samples do not march in step with a loop of the same length."""
FLUSH_INTERVAL_NS = 1_000_000_000
MAX_SAMPLING_NS = 600 * 1_000_000_000
MAX_FILE_BYTES = 16 * 2**20
MAX_UNREQUESTED_NS = 120 * 1_000_000_000
MAX_UNREQUESTED_BYTES = 2 * 2**20
"""In a run that did not ask to be sampled: enough for rules to find the costly line."""
MAX_STACKS = 10_000
_RESERVED_BYTES = 2**18
"""Kept for lines that only say how many samples there were, once the file is full: 600 of 200 B."""
_MAX_THREADS = 4
_FAULT_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}

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
        interval_ns: int = SAMPLE_INTERVAL_NS,
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
        self._shortens_switch_interval = asked or process == "worker"
        self._max_sampling_ns = MAX_SAMPLING_NS if asked else MAX_UNREQUESTED_NS
        self._max_file_bytes = MAX_FILE_BYTES if asked else MAX_UNREQUESTED_BYTES
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
            if self._shortens_switch_interval:
                shorten_switch_interval()
            # Not a threading.Thread: the program's list and count of threads stay as they are.
            _thread.start_new_thread(self._run, ())
            self._pid = os.getpid()
            if self._process == "main":
                atexit.register(self.stop)
        except Exception as fault:
            restore_switch_interval()
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
        if len(known) < _MAX_THREADS:
            self._watched = (*self._watched, _here())

    # ------------------------------------------------------------ on its own thread

    def _run(self) -> None:
        try:
            block_signals()
            self._loop()
        except BaseException as fault:
            self.problem = f"the Python sampler ended early: {fault!r}"
        finally:
            restore_switch_interval()
            self._done.release()

    def _loop(self) -> None:
        flushed = self._began_ns
        every = FLUSH_INTERVAL_NS // 4  # a short life leaves something too
        while not self._gate.acquire(timeout=self._pause()):
            self._look()
            now = monotonic_ns()
            if now - flushed >= every:
                flushed, every = now, min(2 * every, FLUSH_INTERVAL_NS)
                self._flush(now)
                if now - self._began_ns >= self._max_sampling_ns or self._over():
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
                frames = self._within_stack_limit(frame_texts(key, codes, named))
                spent[frames] = spent.get(frames, 0.0) + ns
        stacks = self._whole_samples(spent)
        if not stacks:
            return
        line = self._line(now, stacks)
        if self._bytes + len(line) > self._max_file_bytes - _RESERVED_BYTES:
            line = self._line(now, {(OTHER_STACKS,): sum(stacks.values())})
        self._bytes += len(line)
        if isinstance(self._to, Path):
            _append(self._to / f"python-{os.getpid()}.jsonl", line)
        else:
            self._to(line)

    def _whole_samples(self, spent: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], int]:
        """Whole samples; what is left over is handed on, so that none of the time gets lost."""
        found: dict[tuple[str, ...], int] = {}
        for frames, ns in spent.items():
            whole, self._rest = divmod(self._rest + ns, self._interval_ns)
            if whole:
                found[frames] = int(whole)
        return found

    def _within_stack_limit(self, frames: tuple[str, ...]) -> tuple[str, ...]:
        mark = hash(frames)
        if mark not in self._seen:
            if len(self._seen) >= MAX_STACKS:
                return (OTHER_STACKS,)
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
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULT_SIGNALS)


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


_MODULE = "torch.utils.data._utils.worker"
_NAME = "_worker_loop"
_STOP_FILE_NAME = ".python-over"
"""In the run's folder: the window is past, workers stop sampling within a second."""
MAX_FILES = 256
"""Processes that leave a file; a loader without persistent workers starts new ones each epoch."""
MAX_UNREQUESTED_FILES = 64

Loop = Callable[..., object]


class WorkerLoop:
    """Torch's worker loop with a Sampler beside it."""

    def __init__(self, original: Loop, directory: str, asked: bool = True) -> None:
        self.original = original
        self.asked = asked
        self.directory = directory
        """Empty: it does nothing of its own any more."""
        self.__module__ = _MODULE  # where pickle looks for it by name

    def __call__(self, *args: object, **options: object) -> object:
        sampler = _start_sampler(self, args, options)
        try:
            return self.original(*args, **options)
        finally:
            if sampler is not None:
                sampler.stop()

    def __reduce__(self) -> str | tuple[object, ...]:
        """A spawned worker gets the folder and finds torch's loop by its name. Where it could not
        import us it must run all the same: it gets that name alone, or the loop itself."""
        if self.directory and _worker_can_import_us():
            loop = None if _is_torchs(self.original) else self.original
            return restored, (self.directory, loop, self.asked)
        if getattr(sys.modules.get(_MODULE), _NAME, None) is self:
            return _NAME
        return partial, (self.original,)


def restored(directory: str, original: Loop | None, asked: bool = True) -> Loop:
    """The loop in a spawned worker's process, where torch's own is in its place."""
    loop: Loop = getattr(import_module(_MODULE), _NAME) if original is None else original
    return WorkerLoop(loop.original if isinstance(loop, WorkerLoop) else loop, directory, asked)


_installed: list[tuple[ModuleType, WorkerLoop]] = []
"""The one that stands there, or nothing."""


def install(directory: Path, asked: bool = True) -> None:
    """Workers started from now on write python-<pid>.jsonl in `directory`, an existing folder;
    fewer and shorter ones where nobody asked for them."""
    if _installed:
        return
    (directory / _STOP_FILE_NAME).unlink(missing_ok=True)
    module = import_module(_MODULE)
    ours = WorkerLoop(getattr(module, _NAME), str(directory.absolute()), asked)
    setattr(module, _NAME, ours)
    _installed.append((module, ours))


def uninstall() -> None:
    """Ends the sampling of running workers too. What the program put in our place stays."""
    while _installed:
        module, ours = _installed.pop()
        directory, ours.directory = Path(ours.directory), ""
        if getattr(module, _NAME, None) is ours:
            setattr(module, _NAME, ours.original)
        try:
            (directory / _STOP_FILE_NAME).touch()
        except OSError:
            continue  # they end by themselves, after ten minutes at the latest


def _start_sampler(
    loop: WorkerLoop, args: tuple[object, ...], options: dict[str, object]
) -> Sampler | None:
    """None where it cannot be: the worker goes on without."""
    try:
        over = os.path.join(loop.directory, _STOP_FILE_NAME)
        most = MAX_FILES if loop.asked else MAX_UNREQUESTED_FILES
        if not loop.directory or os.path.exists(over) or _count_files(loop.directory) >= most:
            return None
        sampler = Sampler(
            Path(loop.directory),
            "worker",
            _worker_number(loop.original, args, options),
            beneath=WorkerLoop.__call__.__code__,
            over=partial(os.path.exists, over),
            asked=loop.asked,
        )
        sampler.start()
    except Exception:  # the worker goes on, unseen
        return None
    return sampler


def _count_files(directory: str) -> int:
    return sum(name.startswith("python-") for name in os.listdir(directory))


def _worker_number(loop: Loop, args: tuple[object, ...], options: dict[str, object]) -> int:
    """The worker's, among its arguments: which one it is depends on torch's version."""
    found = options.get("worker_id")
    names = loop.__code__.co_varnames if hasattr(loop, "__code__") else ()
    if found is None and "worker_id" in names:
        place = names.index("worker_id")
        found = args[place] if place < len(args) else None
    return found if isinstance(found, int) else -1


def _is_torchs(loop: Loop) -> bool:
    where = (getattr(loop, "__module__", ""), getattr(loop, "__qualname__", ""))
    return where == (_MODULE, _NAME)


def _worker_can_import_us() -> bool:
    """A spawned process gets this one's search path, and nothing else of it."""
    package = __name__.partition(".")[0]
    try:
        found = PathFinder.find_spec(package, sys.path)
        ours = sys.modules[package].__file__
        return found is not None and ours is not None and found.origin == ours
    except Exception:  # a finder of somebody's own: then the worker is left alone
        return False
