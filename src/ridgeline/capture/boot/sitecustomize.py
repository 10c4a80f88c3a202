"""How Ridgeline gets into a program: Python imports this at start-up, before the user's first line.

Its folder is put first on PYTHONPATH by `capture/launch.py`, and nowhere else. It removes every
trace of itself at once (search path, environment, the module's own name), runs the environment's
own `sitecustomize` if there is one, and leaves two things behind: a function called at exit, and a
finder that notices when torch has been imported. Only the standard library's built-in modules are
used: a program that never imports torch must not pay, or be changed, by more.
"""

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _begin(torch: "Any") -> None:
    try:
        from ridgeline.capture.begin import begin
    except ImportError:
        sys.path.append(_settings[1])  # started from a source tree by a relative PYTHONPATH
        try:
            from ridgeline.capture.begin import begin
        finally:
            sys.path.remove(_settings[1])
    begin(torch, _settings[0])


def _goodbye() -> None:
    if os.getpid() != _pid:  # a fork that ends by itself
        return
    try:
        if not os.path.isdir(_settings[0]):
            return
        sys.path.append(_settings[1])
        from ridgeline.capture.farewell import farewell

        farewell(_settings[0], _settings[2])
    except BaseException as error:  # even Ctrl-C: the program's own end has been decided
        _say(error)


def _say(error: BaseException) -> None:
    try:  # noqa: SIM105  (contextlib is not built in)
        print(f"ridgeline: not recorded: {type(error).__name__}: {error}", file=sys.stderr)
    except Exception:
        pass


class _Loader:
    """The loader torch was to be imported by, and a word once it has been."""

    def __init__(self, loader: "Any") -> None:
        self._loader = loader

    def create_module(self, spec: "Any") -> "Any":
        return self._loader.create_module(spec)

    def exec_module(self, module: "Any") -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            _begin(module)
        except Exception as error:
            _say(error)


class _Finder:
    """Answers for torch once, with the answer everybody else would have given."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != "torch":
            return None
        sys.meta_path.remove(_Finder)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


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


_said = os.environ.pop("RIDGELINE_BOOT", "")
_leave_no_trace()
_settings = _said.split("\n")  # the run's directory, where ridgeline lies, the rank
_pid = os.getpid()
if len(_settings) == 3:
    atexit.register(_goodbye)  # the first to register is the last to run
    sys.meta_path.insert(0, _Finder)

try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  (the environment's own)
except ImportError as missing:
    if missing.name != "sitecustomize":
        raise
    # What Python's site module expects where there is none; it also drops this module's name.
    raise ImportError("no sitecustomize", name="sitecustomize") from None
