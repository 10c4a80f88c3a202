"""Samples the Python stacks of the program and of its loader workers.

A thread of ours looks at the stacks about a hundred times a second, and weighs each sample by the
time since the one before. Loader workers get a sampler of their own by a wrapper around torch's
worker loop. While a sampler runs, the interpreter's switch interval is shorter, so that the sampler
gets its turn.
"""

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
"""Switch interval while a sampler runs: how long its thread waits before another thread must give
up the interpreter's lock. With Python's own 5 ms, a program that computes for 8 ms and sleeps for 2
ms was seen asleep in 70 % of the samples, because the lock became free at the sleep before the wait
was over."""
_program_switch_interval: list[float] = []
"""The program's own switch interval, while ours is in force."""


def shorten_switch_interval() -> None:
    own = sys.getswitchinterval()
    if not _program_switch_interval and own > _SWITCH_INTERVAL_S:
        _program_switch_interval.append(own)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)


def restore_switch_interval() -> None:
    """Restore the program's switch interval, unless the program has set another one since."""
    while _program_switch_interval:
        own = _program_switch_interval.pop()
        if abs(sys.getswitchinterval() - _SWITCH_INTERVAL_S) < 1e-7:
            sys.setswitchinterval(own)


os.register_at_fork(after_in_child=restore_switch_interval)


Key = tuple[int, ...]
"""A stack, innermost frame first, as the ids of code objects, each followed by an instruction. Code
objects themselves would not do, because they compare by value and without their file: the same
function in two files would count as one."""

_MAX_WALKED_FRAMES = 256
"""Number of frames that are read. Each takes 0.4 µs, under the interpreter's lock."""
_OUTERMOST_FRAMES = 15
"""Number of outermost frames that are kept of a deep stack."""


def walk(frame: FrameType, codes: dict[int, CodeType], beneath: CodeType | None) -> Key:
    """Return the key of a stack, up to the function `beneath`. Of a deep stack both ends are
    kept."""
    key: list[int] = []
    current: FrameType | None = frame
    while current is not None and len(key) < 2 * _MAX_WALKED_FRAMES:
        code = current.f_code
        if code is beneath:
            break
        ident = id(code)
        codes[ident] = code  # kept alive until the flush, so that its id is not reused
        key.append(ident)
        key.append(current.f_lasti)  # the line is looked up later, because that takes microseconds
        current = current.f_back
    if len(key) > 2 * MAX_STACK_FRAMES:
        key[2 * (MAX_STACK_FRAMES - _OUTERMOST_FRAMES - 1) : -2 * _OUTERMOST_FRAMES] = (0, 0)
    return tuple(key)


def frame_texts(
    key: Key, codes: dict[int, CodeType], named: dict[tuple[int, int], str]
) -> tuple[str, ...]:
    """Return the frames of a stack as text, outermost first."""
    texts: list[str] = []
    for ident, instruction in zip(key[::2], key[1::2], strict=True):
        text = named.get((ident, instruction))
        if text is None:
            text = _frame_text(codes[ident], instruction) if ident else OMITTED_FRAMES
            named[ident, instruction] = text
        texts.append(text)
    return tuple(reversed(texts))


def _frame_text(code: CodeType, instruction: int) -> str:
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end:
            line = number if number is not None else line
            break
    text = f"{code.co_filename[-1000:]}:{line}:{code.co_qualname[-200:]}"
    # A file's name may hold bytes that are not text, which JSON cannot hold.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


_MAX_SAMPLE_WEIGHT_NS = 10 * 1_000_000_000
"""Largest weight of one sample: while a process is stopped (Ctrl-Z), no line is running."""
_SECOND_LOOK_S = 0.0001
_MAX_SECOND_LOOKS = 3
"""Number of second looks after which an instruction is known to compute or to wait. Each costs the
program about as much as a sample."""
_MAX_PLACES = 5_000


class ThreadTime:
    """Divides the time of one thread over the stacks that it was seen with. The time on a processor
    goes to stacks that compute, and the other time to stacks that wait."""

    def __init__(self, thread: int, native: int | None, began_ns: int) -> None:
        """`thread` and `native` are the `ident` and `native_id` of a live thread of this
        process."""
        self.thread = thread
        self._account = f"/proc/self/task/{native}/schedstat"
        try:
            self._clock: int | None = time.pthread_getcpuclockid(thread)
        except (AttributeError, OSError):  # without this clock all time counts as computing
            self._clock = None
        self._looked = self._settled = began_ns
        self._processor = self._processor_at_settling = self._processor_ns()
        self._queued = self._queued_ns()
        self._places: dict[Key, tuple[int, int]] = {}
        """For each instruction, the number of second looks, and in how many it was computing."""
        self._working: dict[Key, int] = {}
        self._waiting: dict[Key, int] = {}

    def add(self, key: Key | None) -> None:
        """Add a sample, which weighs the time since the one before: a call that keeps the
        interpreter's lock for a second is seen once, and weighs a second. With None for `key`, that
        time does not count."""
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
        """Return the nanoseconds by stack since the last call."""
        working, waiting = self._working, self._waiting
        self._working, self._waiting = {}, {}
        passed = sum(working.values()) + sum(waiting.values())
        worked = self._worked_ns(passed)
        if not working or not waiting or self._clock is None:
            return {**working, **waiting}
        scale = worked / sum(working.values())
        times = {key: weight * scale for key, weight in working.items()}
        scale = (passed - worked) / sum(waiting.values())
        for key, weight in waiting.items():
            times[key] = times.get(key, 0.0) + weight * scale
        return times

    def _worked_ns(self, passed: int) -> float:
        """Return how much of `passed` the thread worked, in the proportion that the kernel
        measured. Time in the run queue counts as work."""
        now, queued, processor = monotonic_ns(), self._queued_ns(), self._processor_ns()
        worked = processor - self._processor_at_settling + max(queued - self._queued, 0)
        share = worked / max(now - self._settled, 1)
        self._settled, self._queued, self._processor_at_settling = now, queued, processor
        return passed * min(max(share, 0.0), 1.0)

    def _is_working(self, place: Key) -> bool:
        """Return whether an instruction computes. A second look shows it, because the processor
        clock of a thread that waits stands still."""
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
        """Return the time that the thread was ready to run without a free processor; 0 if the
        kernel does not tell."""
        try:
            file = os.open(self._account, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(file, 100).split()[1])
            finally:
                os.close(file)
        except (OSError, ValueError, IndexError):
            return 0


SAMPLE_INTERVAL_NS = 10_000_000
"""Average time between samples. Each pause is drawn at random from two thirds to four thirds of it,
so that the samples do not keep step with a loop of the same length."""
FLUSH_INTERVAL_NS = 1_000_000_000
MAX_SAMPLING_NS = 600 * 1_000_000_000
MAX_FILE_BYTES = 16 * 2**20
MAX_UNREQUESTED_NS = 120 * 1_000_000_000
MAX_UNREQUESTED_BYTES = 2 * 2**20
"""Size of a file if the user did not request sampling: enough for rules to find the costly line."""
MAX_STACKS = 10_000
_RESERVED_BYTES = 2**18
"""Room that is kept for lines that only give the number of samples once the file is full: 600 lines
of 200 bytes need less."""
_MAX_THREADS = 4
_FAULT_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}

_encode = msgspec.json.Encoder().encode


class Sampler:
    """Samples one process and writes lines to `to`: a folder (file python-<pid>.jsonl), or a
    function that is called with each line.

    Nothing is raised into the program; `problem` describes an error of ours."""

    def __init__(
        self,
        to: Path | Callable[[bytes], None],
        process: Literal["main", "worker"] = "main",
        worker: int = -1,
        interval_ns: int = SAMPLE_INTERVAL_NS,
        *,
        beneath: CodeType | None = None,
        over: Callable[[], bool] = lambda: False,
        requested: bool = True,
    ) -> None:
        """Frames from the function `beneath` outwards are left out, because a forked worker stands
        on its parent's stack. Sampling ends when `over`, called once a second, returns True. If the
        user did not request sampling (`requested`), it ends earlier, and the program keeps its
        switch interval."""
        self.problem = ""
        self._to = to
        self._process: Literal["main", "worker"] = process
        self._worker = worker
        self._interval_ns = max(interval_ns, 1_000_000)
        self._beneath = beneath
        self._over = over
        self._shortens_switch_interval = requested or process == "worker"
        self._max_sampling_ns = MAX_SAMPLING_NS if requested else MAX_UNREQUESTED_NS
        self._max_file_bytes = MAX_FILE_BYTES if requested else MAX_UNREQUESTED_BYTES
        self._random = random.Random()  # the program's random numbers stay the same
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
        """End the thread, which then writes the last samples. A forked child has no such thread,
        and nothing is done there."""
        if self._stopped or self._pid != os.getpid():
            return
        self._stopped = True
        try:
            self._gate.release()
            self._done.acquire(timeout=EXIT_WAIT_S)  # a disk that hangs does not hold the program
        except Exception as fault:
            self.problem = f"the Python sampler did not end: {fault!r}"

    def watch_this_thread(self) -> None:
        """Sample the calling thread too."""
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
        every = FLUSH_INTERVAL_NS // 4  # so that a short process leaves samples too
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
            # The dict of all frames holds this very frame, so it must not be kept.
            frame = sys._current_frames().get(watched.thread)
            if frame is None or frame.f_code.co_filename == __file__:  # ended, or in stop()
                continue
            # A main thread that only waits for the thread that trains does not count.
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
        """Turn times into whole samples. The rest is carried over, so that no time is lost."""
        samples: dict[tuple[str, ...], int] = {}
        for frames, ns in spent.items():
            whole, self._rest = divmod(self._rest + ns, self._interval_ns)
            if whole:
                samples[frames] = int(whole)
        return samples

    def _within_stack_limit(self, frames: tuple[str, ...]) -> tuple[str, ...]:
        """Return a stack, or the stack that stands for all others once `MAX_STACKS` were seen."""
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
"""Name of a file in the run's folder. Workers stop sampling within a second once it exists."""
MAX_FILES = 256
"""Number of processes that write a file: a loader without persistent workers starts new ones in
each epoch."""
MAX_UNREQUESTED_FILES = 64

Loop = Callable[..., object]


class WorkerLoop:
    """Torch's worker loop with a Sampler beside it."""

    def __init__(self, original: Loop, directory: str, requested: bool = True) -> None:
        self.original = original
        self.requested = requested
        self.directory = directory
        """The run's folder; empty once nothing is sampled any more."""
        self.__module__ = _MODULE  # pickle looks for the object there, by name

    def __call__(self, *args: object, **options: object) -> object:
        sampler = _start_sampler(self, args, options)
        try:
            return self.original(*args, **options)
        finally:
            if sampler is not None:
                sampler.stop()

    def __reduce__(self) -> str | tuple[object, ...]:
        """Pickle the loop for a spawned worker. The worker gets the folder and finds torch's loop
        by its name. A worker that cannot import us must run all the same, so it gets only that
        name, or the loop itself."""
        if self.directory and _worker_can_import_us():
            loop = None if _is_torchs(self.original) else self.original
            return restored, (self.directory, loop, self.requested)
        if getattr(sys.modules.get(_MODULE), _NAME, None) is self:
            return _NAME
        return partial, (self.original,)


def restored(directory: str, original: Loop | None, requested: bool = True) -> Loop:
    """Make the loop again in a spawned worker, where torch's own loop is in its place."""
    loop: Loop = getattr(import_module(_MODULE), _NAME) if original is None else original
    return WorkerLoop(loop.original if isinstance(loop, WorkerLoop) else loop, directory, requested)


_installed: list[tuple[ModuleType, WorkerLoop]] = []
"""The worker loop of ours that is in place, with its module; empty if there is none."""


def install(directory: Path, requested: bool = True) -> None:
    """Make workers that start from now on write python-<pid>.jsonl into `directory`, an existing
    folder. If the user did not request it, there are fewer and shorter files."""
    if _installed:
        return
    (directory / _STOP_FILE_NAME).unlink(missing_ok=True)
    module = import_module(_MODULE)
    ours = WorkerLoop(getattr(module, _NAME), str(directory.absolute()), requested)
    setattr(module, _NAME, ours)
    _installed.append((module, ours))


def uninstall() -> None:
    """Restore torch's worker loop, and end the sampling in running workers. A loop that the program
    put in place of ours stays."""
    while _installed:
        module, ours = _installed.pop()
        directory, ours.directory = Path(ours.directory), ""
        if getattr(module, _NAME, None) is ours:
            setattr(module, _NAME, ours.original)
        try:
            (directory / _STOP_FILE_NAME).touch()
        except OSError:
            continue  # the workers' samplers end by themselves after ten minutes at the latest


def _start_sampler(
    loop: WorkerLoop, args: tuple[object, ...], options: dict[str, object]
) -> Sampler | None:
    """Start a sampler in a worker. Return None if that is not possible; the worker then runs
    without a sampler."""
    try:
        over = os.path.join(loop.directory, _STOP_FILE_NAME)
        most = MAX_FILES if loop.requested else MAX_UNREQUESTED_FILES
        if not loop.directory or os.path.exists(over) or _count_files(loop.directory) >= most:
            return None
        sampler = Sampler(
            Path(loop.directory),
            "worker",
            _worker_number(loop.original, args, options),
            beneath=WorkerLoop.__call__.__code__,
            over=partial(os.path.exists, over),
            requested=loop.requested,
        )
        sampler.start()
    except Exception:  # the worker must run all the same
        return None
    return sampler


def _count_files(directory: str) -> int:
    return sum(name.startswith("python-") for name in os.listdir(directory))


def _worker_number(loop: Loop, args: tuple[object, ...], options: dict[str, object]) -> int:
    """Return the worker's number; -1 if it is not known. Its position among the arguments depends
    on torch's version."""
    number = options.get("worker_id")
    names = loop.__code__.co_varnames if hasattr(loop, "__code__") else ()
    if number is None and "worker_id" in names:
        position = names.index("worker_id")
        number = args[position] if position < len(args) else None
    return number if isinstance(number, int) else -1


def _is_torchs(loop: Loop) -> bool:
    return (getattr(loop, "__module__", ""), getattr(loop, "__qualname__", "")) == (_MODULE, _NAME)


def _worker_can_import_us() -> bool:
    """Return whether a spawned worker can import us: of this process it only gets the search
    path."""
    package = __name__.partition(".")[0]
    try:
        spec = PathFinder.find_spec(package, sys.path)
        ours = sys.modules[package].__file__
        return spec is not None and ours is not None and spec.origin == ours
    except Exception:  # the program has an import hook that raises
        return False
