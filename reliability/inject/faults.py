"""Makes the Nth call of one of our seams fail.

FAULT is `process:seam:N:error`, the process being cli, watcher or program; with FAULT_COUNT, a
file, nothing fails and a line is written there for each call. A call is ours when
the first frame above it that is not the standard library's belongs to Ridgeline. Loaded as the
environment's own `sitecustomize`, so that the product needs no switch for it.
"""

import errno
import importlib
import os
import sys
from collections import Counter

ERRORS = {
    "ENOSPC": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "EROFS": lambda: OSError(errno.EROFS, os.strerror(errno.EROFS)),
    "EMFILE": lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    "EACCES": lambda: PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
    "MemoryError": lambda: MemoryError(),
    "RuntimeError": lambda: RuntimeError("injected"),
    "KILL": lambda: os.kill(os.getpid(), 9),
}
SEAMS = {
    "open": ("os.open", "builtins.open", "io.open"),
    "write": ("os.write", "os.ftruncate"),
    "fsync": ("os.fsync",),
    "rename": ("os.replace", "os.rename"),
    "mkdir": ("os.mkdir", "os.makedirs"),
    "remove": ("os.unlink", "os.remove"),
    "look": ("os.stat", "os.lstat", "os.listdir", "os.scandir", "os.readlink", "os.statvfs"),
    "fork": ("os.fork", "os.setsid", "os.pidfd_open", "os.waitpid"),
    "dup": ("os.dup", "os.dup2"),
    "random": ("os.urandom",),
    "lock": ("fcntl.flock",),
    "thread": ("threading.Thread.start",),
    "process": ("subprocess.Popen.__init__",),
    "import": ("builtins.__import__",),
    "encode": ("msgspec.json.encode", "msgspec.structs.replace"),
    "nvml": ("pynvml.nvmlInit",),
    "psutil": ("psutil.Process.__init__",),
    "disk": ("shutil.disk_usage",),
    "profiler": (
        "torch.profiler.profile.start",
        "torch.profiler.profile.stop",
        "torch.profiler.profile.step",
        "torch.profiler.profile.export_chrome_trace",
    ),
}
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OURS = os.path.join(_ROOT, "src", "ridgeline", "")
_LIBRARY = os.path.dirname(os.__file__)
_BORN = os.getpid()
_counts: Counter[str] = Counter()
_fault: list[str] = []
_log: list[str] = []
_open, _write = os.open, os.write


def process() -> str:
    """Which of the three this is. The watcher is forked from the command's process."""
    command = any(part.endswith("ridgeline") for part in sys.orig_argv[:4])
    if os.getpid() != _BORN:
        return "watcher" if command else "child"
    return "cli" if command else "program"


def ours(frame: object) -> bool:
    """Whether Ridgeline made this call, itself or through the standard library."""
    while frame is not None:
        file = frame.f_code.co_filename  # type: ignore[attr-defined]
        library = file.startswith((_LIBRARY, "<frozen")) and "site-packages" not in file
        # torch's own file is read for the program, through the loader that waits for it
        library |= frame.f_code.co_name == "exec_module"  # type: ignore[attr-defined]
        if not library and "/pathlib" not in file and "faults.py" not in file:
            return os.path.abspath(file).startswith(OURS)
        frame = frame.f_back  # type: ignore[attr-defined]
    return False


def hit(seam: str) -> None:
    """Counts a call of ours, and fails it where its turn has come."""
    key = f"{process()}:{seam}"
    _counts[key] += 1
    if _log:
        file = _open(_log[0], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        _write(file, f"{key}\n".encode())
        os.close(file)
    if _fault and _fault[:2] == key.split(":") and int(_fault[2]) == _counts[key]:
        raise ERRORS[_fault[3]]()


def wrap(owner: object, name: str, seam: str) -> None:
    real = getattr(owner, name)

    def failing(*args: object, **kwargs: object) -> object:
        if ours(sys._getframe(1)):
            hit(seam)
        return real(*args, **kwargs)

    failing.__name__, failing.__wrapped__ = name, real  # type: ignore[attr-defined]
    setattr(owner, name, failing)


def put_on(*seams: str) -> None:
    for seam in seams:
        for path in SEAMS[seam]:
            module, _, rest = path.partition(".")
            owner: object = importlib.import_module(module)
            *inner, name = rest.split(".")
            try:
                for part in inner:
                    owner = getattr(owner, part, None) or importlib.import_module(
                        f"{module}.{part}"
                    )
                wrap(owner, name, seam)
            except (ImportError, AttributeError):
                continue


def begin() -> None:
    """In the command, the watcher and the program, from their first line."""
    _fault[:] = os.environ.get("FAULT", "").split(":") if os.environ.get("FAULT") else []
    _log[:] = [os.environ["FAULT_COUNT"]] if os.environ.get("FAULT_COUNT") else []
    if not _fault and not _log:
        return
    wanted = [_fault[1]] if _fault else list(SEAMS)
    put_on(*(seam for seam in wanted if seam not in ("profiler", "nvml", "psutil", "encode")))
    if process() == "cli":  # what these import is loaded by the command itself anyway
        put_on(*(seam for seam in wanted if seam in ("nvml", "psutil", "encode")))
