"""Kineto's own words, held back: it writes two lines to the program's stderr for each trace.

Its level of severity is a variable of the library, set while we start, stop or export. Turning
stderr itself away would lose what other threads of the program write in that time.
"""

import contextlib
import ctypes
import importlib
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from ridgeline.harness.capture import tracing
from ridgeline.harness.capture.places import is_user_file
from ridgeline.records.run import CallSeen, NoTrace
from ridgeline.records.run_directory import RunDirectory

_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
_VARIABLE = "KINETO_LOG_LEVEL"
_SILENT = 100
_AFTER_INIT = 4
"""What torch itself sets when Kineto is first used."""


@contextlib.contextmanager
def kineto_silenced(torch: Any) -> Any:
    level = _level(torch)
    if level is None or _VARIABLE in os.environ:  # whoever set it wants to read it
        yield
        return
    before = level.value
    libc = ctypes.CDLL(None)
    # The first use reads this variable; os.environ, which the program sees, is left alone.
    libc.setenv(_VARIABLE.encode(), str(_SILENT).encode(), 1)
    level.value = _SILENT
    try:
        yield
    finally:
        libc.unsetenv(_VARIABLE.encode())
        level.value = before or _AFTER_INIT


def _level(torch: Any) -> Any:
    """None where this torch keeps it elsewhere: then the two lines are seen."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.c_int.in_dll(library, _LEVEL)
    except (OSError, ValueError):
        return None


MAX_WALK_S = 2.0
"""Time limit for the walk over the events: an event takes 5 µs, and the program waits meanwhile.
When the limit is reached, nothing is kept, because lines that were not yet found would look as if
they had not run."""
MAX_LINES = 5_000
_EVENTS_BETWEEN_CLOCKS = 4_096
_BUILT_IN = re.compile(r"<built-in (?:method|function) (\w+)")
_PYTHON = re.compile(r"\(\d+\): ([\w<>]+)$")
_MODULE = re.compile(r"^nn\.Module: (\w+?)(?:_\d+)?$")


def calls_seen(profiler: Any) -> tuple[CallSeen, ...]:
    """Return the calls that each line of the user's code made while `profiler` (torch's, now
    stopped) recorded. Return nothing if the profiler knows no callers, or if there are too many
    events or lines."""
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    files = _OwnFiles()
    found: dict[tuple[str, int, str], int] = {}
    end, looked = perf_counter() + MAX_WALK_S, 0
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        looked += 1
        if looked % _EVENTS_BETWEEN_CLOCKS == 0 and perf_counter() > end:
            return ()
        caller = getattr(event.typed[1], "caller", None)  # only Python and built-in calls have it
        if caller is None:
            continue
        file, name = files[caller.file_name], _callee(event.name)
        if file and name:
            key = (file, caller.line_number, name)
            found[key] = found.get(key, 0) + 1
    if len(found) > MAX_LINES:
        return ()
    return tuple(
        CallSeen(file=file, line=line, name=name, times=times)
        for (file, line, name), times in sorted(found.items())
    )


def _callee(event: str) -> str:
    for pattern in (_BUILT_IN, _PYTHON, _MODULE):
        match = pattern.search(event)
        if match is not None:
            return match[1]
    return ""


class _OwnFiles(dict[str, str]):
    """Full paths of the user's own files by the names that the profiler gives them, which lack the
    entry of `sys.path`; "" for a file that is not the user's. Each name is looked for once."""

    def __init__(self) -> None:
        super().__init__()
        named = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        self._own = [
            os.path.abspath(file) for file in named if isinstance(file, str) and is_user_file(file)
        ]

    def __missing__(self, name: str) -> str:
        ends = [file for file in self._own if file == name or file.endswith(f"/{name}")]
        self[name] = ends[0] if ends else ""
        return self[name]


_BLOCK = 1 << 20


def pack(directory: RunDirectory) -> None:
    """trace-rank<N>.json → trace-rank<N>.json.gz, by rename. What fails stays as it was."""
    for plain in sorted(directory.path.glob("trace-rank*.json")):
        with contextlib.suppress(OSError):
            _pack(plain, plain.with_name(plain.name + ".gz"))


def _pack(plain: Path, target: Path) -> None:
    partial = target.with_name(f".{target.name}.part")
    packer = _packer()
    try:
        with open(plain, "rb") as text, open(partial, "wb") as packed:
            while block := text.read(_BLOCK):
                packed.write(packer.compress(block))
            packed.write(packer.flush())
        os.chmod(partial, 0o600)
        os.replace(partial, target)
        plain.unlink()
    finally:
        partial.unlink(missing_ok=True)


def _packer() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.compressobj(1, wbits=31)
    return isal_zlib.compressobj(2, wbits=31)


MIN_FREE_BYTES = 512 * 1024 * 1024
_SEARCHED_BYTES = 8 * 1024 * 1024
MAX_TRACE_BYTES = 2 * 1024 * 1024 * 1024
"""Of a trace as text. Three steps of a large model with stacks are 50 to 200 MB."""


class Tracing:
    """One traced window, from `start` to `stop`."""

    def __init__(self, torch: Any, target: Path, fault: Callable[[str, NoTrace], None]) -> None:
        self._torch = torch
        self._target = target
        self._fault = fault
        self._profiler: Any = None
        self._hook: Any = None
        self._log_level = LogLevel(torch)
        self.starting = False
        self.used = False
        """Kineto runs a thread from its first trace to the process's end."""
        self.names_modules = False
        """Calls of modules were recognised by our code object: the profiler met it first."""
        self.calls: tuple[CallSeen, ...] = ()
        """The calls that lines of the user's own code made in the traced steps."""

    @property
    def running(self) -> bool:
        return self._profiler is not None

    def blocked(self) -> bool:
        """Whether the program's own profiler is at work."""
        return bool(self._torch.autograd._profiler_enabled())

    def start(self, cuda: bool) -> bool:
        profiler = self._torch.profiler
        if shutil.disk_usage(self._target.parent).free < MIN_FREE_BYTES:
            self._fault("no trace: less than 512 MB are free on the disk", "disk-full")
            return False
        activities = [profiler.ProfilerActivity.CPU]
        if cuda:
            activities.append(profiler.ProfilerActivity.CUDA)
        # The program's own sys.setprofile (cProfile) and stacks cannot both be had.
        stacks = sys.getprofile() is None
        # With memory the allocator warns, on the program's stderr, of each thousandth block that
        # is older than the trace: only where it can be told not to.
        memory = self._log_level.raised()
        self.starting = self.used = True
        try:
            made = profiler.profile(
                activities=activities,
                schedule=lambda step: profiler.ProfilerAction.RECORD,
                record_shapes=True,
                profile_memory=memory,
                with_stack=stacks,
            )
            with self._silent(), _without_advice():
                made.start()
        except BaseException:
            self._log_level.back()
            raise
        finally:
            self.starting = False
        self._profiler = made
        self._hook = sys.getprofile()
        if not stacks:
            self._fault("the trace has no stacks: the program uses sys.setprofile or cProfile", "")
        return True

    def step(self) -> None:
        with self._hidden():
            self._profiler.step()

    @contextlib.contextmanager
    def _silent(self) -> Any:
        with self._hidden(), tracing.kineto_silenced(self._torch):
            yield

    @contextlib.contextmanager
    def _hidden(self) -> Any:
        """The profiler's marks are operators: modes of the program's own must not be told them."""
        modes = importlib.import_module("torch.utils._python_dispatch")
        with self._torch._C.DisableTorchFunction(), modes._disable_current_modes():
            yield

    def stop(self, keep: bool) -> Path | None:
        """Ends the window; the trace's file, or None where there is none."""
        made, self._profiler = self._profiler, None
        theirs = sys.getprofile()
        try:
            with self._silent():
                made.stop()
        finally:
            self._log_level.back()
        if theirs is not None and theirs is not self._hook:
            _give_back(theirs)
        if not keep:
            _free(made)
            return None
        partial = self._target.parent / f".{self._target.name}.part"
        try:
            with self._silent():
                made.export_chrome_trace(str(partial))
            if partial.stat().st_size > MAX_TRACE_BYTES:
                self._fault(
                    "the trace was larger than 2 GB and was not kept: --trace-steps 1", "too-large"
                )
                return None
            os.chmod(partial, 0o600)
            with open(partial, "rb") as file:
                self.names_modules = b"nn.Module: " in file.read(_SEARCHED_BYTES)
            os.replace(partial, self._target)
            with contextlib.suppress(Exception):  # another version of the profiler
                self.calls = calls_seen(made)
        finally:
            partial.unlink(missing_ok=True)
            _free(made)
        return self._target


def _free(profiler: Any) -> None:
    """Free the events of a profiler that has stopped. The profiler refers to itself, so that its
    events (36 MiB for a small program) would stay until Python next collects cycles, and would look
    like the program's own memory."""
    vars(profiler).clear()


@contextlib.contextmanager
def _without_advice() -> Any:
    """torch 2.11 warns, on the program's stderr, of a second cycle that we never begin. Said once a
    process, the program's own profiler may still say it."""
    module = importlib.import_module("torch.profiler.profiler")
    theirs = getattr(module, "_warn_once", None)
    if theirs is None:
        yield
        return
    module._warn_once = lambda *words, **more: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module._warn_once = theirs  # type: ignore[attr-defined]


class LogLevel:
    """The level of torch's C++ log: errors only while the trace runs."""

    _WARNING, _ERROR = 1, 2

    def __init__(self, torch: Any) -> None:
        self._library = Path(torch.__file__).parent / "lib" / "libc10.so"
        self._flag: Any = None

    def raised(self) -> bool:
        import ctypes

        try:
            flag = ctypes.c_int.in_dll(ctypes.CDLL(str(self._library)), "FLAGS_caffe2_log_level")
        except (OSError, ValueError):
            return False
        if flag.value == self._WARNING:
            flag.value = self._ERROR
            self._flag = flag
        return True

    def back(self) -> None:
        if self._flag is not None:
            self._flag.value = self._WARNING
            self._flag = None


def end_without_kineto() -> None:
    """In a child forked after a trace: Kineto would wait at the very end for a thread that only the
    parent has, for ever. The C library leaves with the child's own exit code before it comes to
    that, its streams written out. Children of multiprocessing leave that way anyway."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # the last to register is the first to run
    libc.__cxa_atexit(libc.fflush, None, None)


def _give_back(hook: Any) -> None:
    """The program set its own profile function meanwhile, and stopping ours took it away."""
    enable = getattr(hook, "enable", None)
    if callable(enable):
        enable()  # cProfile's object
    else:
        sys.setprofile(hook)
