"""Who takes part in each process group, and whether all of them are here.

The last to join a collective can only be named where every member's trace is given: of eight
ranks' files four named rank 2 for what rank 7 had done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.ranks.collectives import Collectives
from ridgeline.trace.ranks.wording import are, listed


@dataclass(frozen=True, slots=True)
class Job:
    """What the files say of the whole."""

    numbers: tuple[int, ...] | None = None
    """Each file's rank; None where they do not all tell one of their own."""
    world: int = 0
    """Ranks of the job; 0 where no file says."""


@dataclass(frozen=True, slots=True)
class Membership:
    here: NDArray[np.bool_]
    """Row: a group, column: a file. Whose collectives of that group should be in that file."""
    size: NDArray[np.int64]
    """Members of each group, the missing too."""
    absent: tuple[tuple[int, ...], ...]
    """Ranks of each group that show nothing, where it is known who they are."""

    @property
    def short(self) -> list[int]:
        """Groups that lack a member."""
        return np.flatnonzero(self.size > self.here.sum(axis=1)).tolist()


def membership(ranks: Sequence[Collectives], groups: Mapping[str, int], job: Job) -> Membership:
    here = np.zeros((len(groups), len(ranks)), bool)
    for r, one in enumerate(ranks):
        here[[groups[one.groups[g]] for g in np.unique(one.group[one.together])], r] = True
    talks = here.any(axis=0)
    numbers = np.array(job.numbers if job.numbers else [-1] * len(ranks))
    size = here.sum(axis=1)
    absent: list[tuple[int, ...]] = [()] * len(groups)
    for name, g in groups.items():
        if not here[g].any():  # sends alone
            continue
        told = max(_told_size(one, name) for one in ranks)
        members = next((m for one in ranks if (m := _told_members(one, name))), ())
        if job.numbers and members and np.isin(numbers[here[g]], members).all():
            here[g] = np.isin(numbers, members) & talks
            size[g], wanted = len(members), members
        elif told:
            size[g], wanted = told, tuple(range(job.world)) if told == job.world else ()
        elif job.world:  # an old trace tells no groups: all ranks, unless all are here
            short = int(talks.sum()) < job.world
            size[g], wanted = (job.world, tuple(range(job.world))) if short else (size[g], ())
        else:  # one that shows nothing at all may belong to any group
            size[g], wanted = size[g] + int((~talks).sum()), tuple(numbers[~talks].tolist())
        if job.numbers:
            absent[g] = tuple(m for m in wanted if m not in numbers[talks])
    return Membership(here, size, tuple(absent))


def _told_size(one: Collectives, group: str) -> int:
    if group not in one.groups:
        return 0
    return int(one.size[one.group == one.groups.index(group)].max(initial=0))


def _told_members(one: Collectives, group: str) -> tuple[int, ...]:
    return one.members[one.groups.index(group)] if group in one.groups else ()


def missing(found: Membership, job: Job) -> str:
    """Which members are not here, and what that leaves unknown."""
    short = found.short
    if not short:
        return ""
    lost = sorted({rank for g in short for rank in found.absent[g]})
    who = f"{listed(lost)} {are(lost)} missing" if lost else ""
    if lost and job.numbers and set(lost) <= set(job.numbers):  # a file without collectives
        who = f"{listed(lost)} {'shows' if len(lost) == 1 else 'show'} no collective"
    if len(short) > 1:
        which = f"{len(short)} of {len(found.size)} process groups are not all here"
        return f"{which}{who and f': {who}'}, so nobody can say who was last in them"
    here, size = int(found.here[short[0]].sum()), int(found.size[short[0]])
    whose = "" if size == job.world or len(found.size) == 1 else " of a process group"
    said = f"{here} of {size} ranks{whose} are here{who and f': {who}'}"
    return f"{said}, so nobody can say who was last"
