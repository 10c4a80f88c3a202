"""Where the program was seen during its pauses, and for which share of the sampled time."""

from collections.abc import Collection, Sequence

from msgspec import Struct

from ridgeline.records.run import PauseSeen
from ridgeline.records.trace import Place

MIN_DOMINANT_SHARE = 0.6
"""Share of the sampled time that a line must take to be the reason of a pause. If it takes less,
its caller may be the reason."""
_PAUSING_PHASES = ("", "other", "transfer", "evaluation")
"""Phases whose samples count. A late step is also sampled in its forward or backward, after the
pause."""


class PausePlace(Struct, frozen=True, kw_only=True):
    path: tuple[Place, ...]
    """The call stack, from the outermost of the user's functions to the line that took the time."""
    share: float
    """Share of the sampled time that the line took."""
    pauses: int
    """Number of pauses in which the line was seen."""

    @property
    def place(self) -> Place:
        return self.path[-1]


def pause_place(seen: Sequence[PauseSeen], steps: Collection[int]) -> PausePlace | None:
    """Return the deepest line that took most of the sampled time in these steps. Return None if the
    steps were not sampled, or if no line stands out."""
    looks = [
        one for one in seen if one.step in steps and one.phase in _PAUSING_PHASES and one.frames
    ]
    total = sum(look.seconds for look in looks)
    path: tuple[str, ...] = ()
    share = 0.0
    while looks:
        spent: dict[str, float] = {}
        for look in looks:
            if len(look.frames) > len(path):
                frame = look.frames[-1 - len(path)]
                spent[frame] = spent.get(frame, 0.0) + look.seconds
        most = max(spent, key=lambda frame: spent[frame], default="")
        if not total or spent.get(most, 0.0) < MIN_DOMINANT_SHARE * total:
            break
        looks = [o for o in looks if len(o.frames) > len(path) and o.frames[-1 - len(path)] == most]
        path, share = (*path, most), spent[most] / total
        held = {look.step for look in looks}
    places = tuple(place for frame in path if (place := place_of_frame(frame)) is not None)
    return PausePlace(path=places, share=share, pauses=len(held)) if places else None


def place_of_frame(frame: str) -> Place | None:
    """Return the place for a text file:line:function, or None if the text has no line number."""
    file, line, function = [*frame.rsplit(":", 2), "", ""][:3]
    if not line.isdecimal():
        return None
    return Place(file=file, line=int(line), function=function)
