"""What the ranks of one job did to each other, from their traces side by side."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from ridgeline.diagnose.attempts import Attempts
from ridgeline.errors import UsageError
from ridgeline.records.collective_site import Exchange, RankPlace
from ridgeline.records.trace import Window
from ridgeline.records.trace_ranks import Ranks
from ridgeline.trace.analyses.collective_sites import exchange
from ridgeline.trace.links import Links
from ridgeline.trace.ranks.own_functions import own_functions
from ridgeline.trace.ranks.study import compared
from ridgeline.trace.study import open_trace
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import window_of

MOST_RANKS = 16
"""Traces read for a comparison: 16 of 5 MB each take some seconds."""


class AcrossRanks(Struct, frozen=True, kw_only=True):
    """Empty where one rank's trace is all there is."""

    exchange: Exchange = Exchange()
    """Of the first rank."""
    ranks: Ranks | None = None
    places: tuple[RankPlace, ...] = ()
    window_ns: int = 0


def of_files(files: Sequence[Path], steps: int, attempts: Attempts) -> AcrossRanks:
    """Of a run: a trace a rank, rank 0's first; `steps`: how many the program traced."""
    traces = []
    for path in files[:MOST_RANKS]:
        opened = attempts.part(f"the trace {path.name}", lambda path=path: open_trace(path, False))  # type: ignore[misc]
        if opened is not None:
            traces.append(opened.trace)
    return of_traces(traces, [_window(trace, steps) for trace in traces], attempts)


def of_traces(
    traces: Sequence[Trace],
    windows: Sequence[Window],
    attempts: Attempts,
    ranks: Ranks | None = None,
) -> AcrossRanks:
    """`ranks`: as a study has already compared them."""
    if not traces:
        return AcrossRanks()
    links = [Links(trace) for trace in traces]
    first = attempts.part("the collectives", lambda: exchange(traces[0], links[0], windows[0]))
    if len(traces) > 1 and ranks is None:
        ranks = attempts.part("the ranks", lambda: compared(traces, links, windows)[0])
    numbers = [one.rank for one in ranks.ranks] if ranks is not None else []
    places: tuple[RankPlace, ...] | None = ()
    if len(numbers) == len(traces) > 1:
        places = attempts.part(
            "the ranks' functions", lambda: own_functions(traces, links, windows, numbers)
        )
    return AcrossRanks(
        exchange=first or Exchange(), ranks=ranks, places=places or (), window_ns=windows[0].ns
    )


def _window(trace: Trace, steps: int) -> Window:
    if steps > 0:
        try:
            return window_of(trace, f"0-{steps - 1}")
        except UsageError:
            pass
    return window_of(trace, "all")
