"""Gets Ridgeline into a program: Python imports this module at start-up, before the user's first
line.

Only `capture/launch.py` puts this folder first on PYTHONPATH. The module removes every trace of
itself at once (search path, environment, its own name), runs the environment's own `sitecustomize`
if there is one, and leaves two things behind: a function called at exit, and a finder that notices
when torch has been imported. It uses only modules that Python has loaded anyway: a program that
never imports torch must neither pay for more nor be changed by more."""

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _begin(torch: "Any") -> None:
    name = _settings[3] if len(_settings) > 3 else "ridgeline.harness.capture.seams"
    try:
        beginning = __import__(name, fromlist=["begin"])
    except ImportError:
        sys.path.append(_settings[1])  # started from a source tree by a relative PYTHONPATH
        try:
            beginning = __import__(name, fromlist=["begin"])
        finally:
            sys.path.remove(_settings[1])
    beginning.begin(torch, _settings[0])


def _goodbye() -> None:
    if os.getpid() != _pid:  # a forked child of the program
        return
    try:
        if not os.path.isdir(_settings[0]):
            return
        if "ridgeline.harness.capture.live" not in sys.modules:
            _farewell_alone()
            return
        sys.path.append(_settings[1])
        from ridgeline.harness.capture.program_exit import farewell

        farewell(_settings[0], _settings[2])
    except KeyboardInterrupt:  # the user does not want to wait
        pass
    except BaseException as error:  # an error of ours must not change how the program ends
        _say(error)
    finally:
        _still_interrupted()


def _farewell_alone() -> None:
    """Do what `farewell` does for a program that never imported torch. Nothing is imported that the
    program's own import hooks could see, or that has the name of a module of the program."""
    import time

    kind = getattr(sys, "last_type", None)
    ended = "finished"
    if kind is not None:
        ended = "interrupted" if issubclass(kind, KeyboardInterrupt) else "raised"
    why = _words(kind) if ended == "raised" else ""
    text = (
        f'{{"rank":{int(_settings[2])},"pid":{_pid},"torch_imported":false,"ended":"{ended}",'
        f'"why":"{why}","ended_ns":{time.perf_counter_ns()}}}'
    )
    path = f"{_settings[0]}/capture-rank{int(_settings[2])}.json"
    temporary = f"{_settings[0]}/.capture-rank{int(_settings[2])}.json.{os.urandom(4).hex()}"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            if os.write(file, text.encode()) != len(text.encode()):
                raise OSError("no space is left on the disk")
        finally:
            os.close(file)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    _wait_for_watcher(f"{_settings[0]}/.watch-rank{int(_settings[2])}.lock")


def _wait_for_watcher(path: str) -> None:
    """Wait as `watch_lock.wait_for` does. Give up after 20 s (there is no trace to read), or
    after one second in which the watcher did not set the file's time."""
    import fcntl
    import time

    file = os.open(path, os.O_RDONLY)
    sign = os.fstat(file).st_mtime_ns
    sign_seen_at = time.monotonic()
    end = sign_seen_at + 20
    while time.monotonic() < min(end, sign_seen_at + 1):
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.02)  # no busy waiting: the program may have timers of its CPU time
        if os.fstat(file).st_mtime_ns != sign:
            sign, sign_seen_at = os.fstat(file).st_mtime_ns, time.monotonic()
    os.close(file)


def _words(kind: "Any") -> str:
    """Return the uncaught exception as one line, with characters replaced that JSON would
    escape."""
    try:
        line = (str(getattr(sys, "last_value", "")).strip().splitlines() or [""])[0][:200]
    except Exception:  # the exception's own __str__ raised
        line = ""
    words = f"{kind.__name__}: {line}" if line else kind.__name__
    return "".join(c if c.isprintable() and c not in '"\\' else "'" for c in words)


def _still_interrupted() -> None:
    """After an uncaught interrupt Python dies by SIGINT, unless code was run from text since then,
    as namedtuple does: Python then forgets the interrupt. Running the text below restores it."""
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        try:  # noqa: SIM105
            exec("raise KeyboardInterrupt")
        except KeyboardInterrupt:
            pass


def _say(error: BaseException) -> None:
    try:  # noqa: SIM105  (contextlib is not built in)
        print(f"ridgeline: not recorded: {type(error).__name__}: {error}", file=sys.stderr)
    except Exception:
        pass  # a program without a stderr


class _Finder:
    """Finds torch by the other finders, and notices when it is imported."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not _Finder else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    _listen(spec.loader)
                return spec
        return None


def _listen(loader: "Any") -> None:
    """Make `loader` call `_begin` after it has run torch's module. Finding torch is not enough,
    because many programs only check whether it is installed."""
    theirs = loader.exec_module

    def exec_module(module: "Any") -> None:
        del loader.exec_module
        if _Finder in sys.meta_path:
            sys.meta_path.remove(_Finder)
        try:
            theirs(module)
        except BaseException as error:
            trace = error.__traceback__
            error.__traceback__ = trace and trace.tb_next  # without this frame of ours
            raise
        try:
            if hasattr(module, "autograd"):  # else it is a file of the user named torch.py
                _begin(module)
        except Exception as error:
            _say(error)

    try:  # noqa: SIM105
        loader.exec_module = exec_module
    except Exception:
        pass  # a custom loader that accepts no attributes


def _leave_no_trace() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    sys.path_importer_cache.pop(here, None)
    before = os.environ.pop("RIDGELINE_BEFORE", None)
    if before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = before
    sys.modules.pop("sitecustomize", None)


_boot = os.environ.pop("RIDGELINE_BOOT", "")
_leave_no_trace()
_settings = _boot.split("\n")  # the run, ridgeline's folder, the rank, the module that begins
_pid = os.getpid()
if len(_settings) in (3, 4):
    atexit.register(_goodbye)  # the first to register is the last to run
    sys.modules.pop("atexit", None)  # the registered function stays
    sys.meta_path.insert(0, _Finder)

try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  (the environment's own)
except ImportError as missing:
    if missing.name != "sitecustomize":
        raise
    # Python's site module expects this error if there is none; it also drops this module's name.
    raise ImportError("no sitecustomize", name="sitecustomize") from None
