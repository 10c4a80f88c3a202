"""How much of a window the system worked for the program: pages it asked for, files it read."""

from collections.abc import Callable
from contextlib import suppress


class SystemTime:
    """Of this process, all its threads; not of its workers."""

    def __init__(self, clock: Callable[[], int], spent: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._spent = spent or _system_s
        self._began: tuple[int, float] | None = None
        self._passed_s = self._worked_s = 0.0

    @property
    def share(self) -> float | None:
        """Of the windows so far; more than all of them where several threads ask at once."""
        return self._worked_s / self._passed_s if self._passed_s else None

    def begin(self, anew: bool = False) -> None:
        """A window; `anew`: those before it do not count."""
        if anew:
            self._passed_s = self._worked_s = 0.0
        self._began = self._clock(), self._spent()

    def end(self) -> None:
        """Nothing, where none has begun."""
        began, self._began = self._began, None
        if began is not None:
            self._passed_s += (self._clock() - began[0]) / 1e9
            self._worked_s += self._spent() - began[1]


def _system_s() -> float:
    with suppress(ImportError):  # elsewhere than on Unix
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_stime
    return 0.0
