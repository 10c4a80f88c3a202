"""The traced window: torch's profiler is started, stopped and exported without the program
noticing.

Kineto writes two lines to the program's stderr for each trace. They are suppressed by a variable of
the library, which holds its log level. Redirecting stderr itself would lose what other threads of
the program write meanwhile."""

import contextlib
import ctypes
import importlib
import os
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ridgeline.harness.capture.event_walk import Walk
from ridgeline.records.run import CallSeen, NoTrace
from ridgeline.records.run_directory import RunDirectory

_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
_VARIABLE = "KINETO_LOG_LEVEL"
_SILENT = 100
_AFTER_INIT = 4
"""The log level that torch sets when Kineto is first used."""


@contextlib.contextmanager
def kineto_silenced(torch: Any) -> Any:
    level = _level(torch)
    if level is None or _VARIABLE in os.environ:  # a user who set the variable wants the log
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
    """Return the library's log level; None if this version of torch keeps it elsewhere, so that the
    two lines cannot be suppressed."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.c_int.in_dll(library, _LEVEL)
    except (OSError, ValueError):
        return None


_BLOCK = 1 << 20


def pack(directory: RunDirectory) -> None:
    """Compress each trace-rank<N>.json to trace-rank<N>.json.gz. A file for which that fails stays
    as it was."""
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
"""Largest trace, as text, that is kept. Three steps of a large model with stacks take 50 to 200 MB.
"""


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
        """Whether a trace was ever started. Kineto then has a thread until the process ends."""
        self.names_modules = False
        """Whether the profiler has learned to recognise calls of modules by our code object."""
        self.calls: tuple[CallSeen, ...] = ()
        """The calls that lines of the user's own code made in the traced steps."""
        self.walk: Walk | None = None
        """The walk over the events of the traced steps, until its allocations are written."""

    @property
    def running(self) -> bool:
        return self._profiler is not None

    def blocked(self) -> bool:
        """Return whether the program's own profiler is at work."""
        return bool(self._torch.autograd._profiler_enabled())

    def start(self, cuda: bool) -> bool:
        profiler = self._torch.profiler
        if shutil.disk_usage(self._target.parent).free < MIN_FREE_BYTES:
            self._fault("no trace: less than 512 MB are free on the disk", "disk-full")
            return False
        activities = [profiler.ProfilerActivity.CPU]
        if cuda:
            activities.append(profiler.ProfilerActivity.CUDA)
        # Stacks cannot be recorded while the program itself uses sys.setprofile, as cProfile does.
        stacks = sys.getprofile() is None
        # With memory events the allocator warns on the program's stderr of every thousandth block
        # that is older than the trace. So they are recorded only if the warnings can be turned off.
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
        with self._hidden(), kineto_silenced(self._torch):
            yield

    @contextlib.contextmanager
    def _hidden(self) -> Any:
        """Hide the profiler's marks, which are operators, from dispatch modes of the program."""
        modes = importlib.import_module("torch.utils._python_dispatch")
        with self._torch._C.DisableTorchFunction(), modes._disable_current_modes():
            yield

    def stop(self, keep: bool) -> Path | None:
        """End the window and return the trace's file; None if no trace was kept."""
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
            with contextlib.suppress(Exception):  # versions of the profiler differ
                self.walk = Walk().over(made)
                self.calls = self.walk.calls()
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
    """Suppress a warning of torch 2.11 about a second profiling cycle, which we never begin. torch
    warns once per process, so the program's own profiler can still cause the warning."""
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
    """Sets torch's C++ log to errors only while the trace runs."""

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
    """Make a child that was forked after a trace exit before Kineto's own exit handler. That
    handler would wait for ever for a thread that only the parent has. The C library flushes its
    streams and exits with the child's own exit code. Children of multiprocessing exit like this
    anyway."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # the last to register is the first to run
    libc.__cxa_atexit(libc.fflush, None, None)


def _give_back(hook: Any) -> None:
    """Restore the program's profile function, which stopping our trace has removed."""
    enable = getattr(hook, "enable", None)
    if callable(enable):
        enable()  # cProfile's object
    else:
        sys.setprofile(hook)
