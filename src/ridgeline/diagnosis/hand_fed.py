"""The time in functions of the user's own that make the input, by their names.

In a loop without a DataLoader (`x, y = get_batch("train")`) nothing marks the input. The names in
the trace's Python stacks tell it, which is an estimate, and reported as one."""

import re

from msgspec import Struct

from ridgeline.records.trace import Window
from ridgeline.trace.intervals import clip, union
from ridgeline.trace.links import Links
from ridgeline.trace.places import is_own, place_of
from ridgeline.trace.trace import Trace

_VERB = (
    r"(?:get|next|load|read|fetch|make|build|prepare|create|sample|draw|generate|decode"
    r"|iter(?:ate)?)"
)
_NOUN = (
    r"(?:mini)?(?:batch(?:es)?|data|dataset|examples?|samples?|images?|inputs?|records?|shards?)"
)
_FEEDS = re.compile(
    rf"_*(?:{_VERB}_?(?:\w+_)?{_NOUN}(?:_\w+)?|(?:mini)?batch(?:es|_?iter\w*|_?gen\w*)"
    rf"|data_?(?:iter|gen|stream|feed)\w*|collate\w*|augment\w*|preprocess\w*|tokenize\w*|decode)",
    re.IGNORECASE,
)


class HandFed(Struct, frozen=True, kw_only=True):
    share: float = 0.0
    """The share of the traced window, on the main thread."""
    function: str = ""
    place: str = ""


def feeds(function: str) -> bool:
    """Return whether a function of that name makes batches."""
    return _FEEDS.fullmatch(function) is not None


def hand_fed(trace: Trace, links: Links, window: Window) -> HandFed:
    frames = trace.frames
    if not len(frames) or window.ns <= 0:
        return HandFed()
    rows = trace.names_where(frames.name, makes_input) & (frames.lane == links.main_lane)
    mine = frames.take(rows)
    inside = clip(union(mine.ts, mine.end), window.start_ns, window.end_ns)
    if not inside.total:
        return HandFed()
    longest = max(range(len(mine)), key=lambda row: int(mine.dur[row]))
    place = place_of(trace.text(int(mine.name[longest])))
    assert place is not None
    return HandFed(
        share=inside.total / window.ns,
        function=place.function,
        place=f"{place.file}:{place.line}",
    )


def makes_input(frame: str) -> bool:
    if not is_own(frame):
        return False
    place = place_of(frame)
    return place is not None and feeds(place.function)
