"""A clock whose time is simulated: tests about timing must not depend on the machine."""

from collections.abc import Callable, Iterator

import pytest

from ridgeline.measure.clock import Reading


class FakeClock:
    """Each call takes the next duration; the last one repeats for ever."""

    def __init__(
        self,
        durations: Iterator[float],
        *,
        name: str = "wall",
        shortest_ns: float = 20_000.0,
        cpu_share: float = 1.0,
        event_share: float = 1.0,
        issue_share: float | None = None,
    ) -> None:
        self.name = name
        self.shortest_ns = shortest_ns
        self.blocks: list[int] = []
        self._durations = durations
        self._cpu_share = cpu_share
        self._event_share = event_share
        self._issue_share = issue_share
        self._now = 0.0

    def now_ns(self) -> int:
        return int(self._now)

    def time(
        self, call: Callable[[], object], calls: int, before: Callable[[], object] | None = None
    ) -> Reading:
        self.blocks.append(calls)
        wall = 0.0
        for _ in range(calls):
            call()
            wall += next(self._durations)
        self._now += wall
        return Reading(
            total_ns=wall * self._event_share,
            wall_ns=wall,
            cpu_ns=wall * self._cpu_share,
            issue_ns=None if self._issue_share is None else wall * self._issue_share,
        )


@pytest.fixture
def fake_clock() -> type[FakeClock]:
    return FakeClock
