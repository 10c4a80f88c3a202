"""How much of a window the system worked for the program: pages it asked for, files it read."""

from collections.abc import Callable
from contextlib import suppress


class SystemTime:
    """Of this process, all its threads; not of its workers."""

    def __init__(self, clock: Callable[[], int], spent: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._spent = spent or _system_s
        self._began: tuple[int, float] | None = None
        self.share: float | None = None
        """Of the window's time; more than all of it where several threads ask at once."""

    def begin(self) -> None:
        self._began = self._clock(), self._spent()

    def end(self) -> None:
        """Nothing, where none has begun."""
        began, self._began = self._began, None
        if began is None:
            return
        passed_s = (self._clock() - began[0]) / 1e9
        if passed_s > 0:
            self.share = (self._spent() - began[1]) / passed_s


def _system_s() -> float:
    with suppress(ImportError):  # elsewhere than on Unix
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_stime
    return 0.0
