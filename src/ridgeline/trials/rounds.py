"""Steps of a program whose loader has workers, so that their middle tells how fast it is."""

from collections.abc import Sequence

from ridgeline.records.run import LoaderSeen

MOST_AHEAD = 128
WAITS = 0.05
"""Of a step, for its batch: less is no sign that the queue is empty."""


def made_ahead(workers: int, prefetch_factor: int | None) -> int:
    """Steps after the watched ones that are not timed: workers had time to fill their queue, and
    steps that empty it are faster than any that follow (prefetching looked like 3.56 ×). Twice its
    length, because it is filled while it is emptied."""
    return min(2 * workers * (prefetch_factor or 0), MOST_AHEAD)


def emptied(waits: Sequence[float], workers: int) -> int:
    """The first step that finds the queue as the last ones do: where those wait for their batches
    and earlier ones did not, it was still being emptied. A queue of 32 that is filled half as fast
    as it is emptied lasts for 64 steps, and prefetching looked like 1.26 × where it brings
    nothing. `waits`: of each step, the share it waited."""
    size = max(workers, 1)
    rounds = [sum(waits[at : at + size]) / size for at in range(len(waits) - size + 1)]
    last = rounds[2 * len(rounds) // 3 :]
    usual = sum(last) / len(last) if last else 0.0
    if not workers or usual < WAITS:
        return 0
    return next((at for at, wait in enumerate(rounds) if wait >= usual / 2), 0)


def in_rounds(step_ns: Sequence[int], workers: int) -> tuple[int, ...]:
    """Each step as the mean of a round of the workers: they finish their batches together, so that
    of two steps one waits and one does not (8 and 25 ms, in turn, were measured), and the middle
    one of such steps is either: 6.43 × were seen where 2 are possible."""
    size = max(min(workers, len(step_ns) // 2), 1)
    return tuple(
        round(sum(step_ns[at : at + size]) / size) for at in range(len(step_ns) - size + 1)
    )


def feeding(loaders: Sequence[LoaderSeen]) -> LoaderSeen:
    """The one the steps were fed by."""
    return max(loaders, key=lambda one: one.batches, default=LoaderSeen())
