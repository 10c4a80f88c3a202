"""What was not tried, for a terminal: a line for each kind of reason, those that a person can do
something about first. Every change with its own reason is in the report and the document."""

import re

from msgspec import Struct
from rich.cells import cell_len

from ridgeline import units
from ridgeline.records.optimized import Optimized, Rung
from ridgeline.report.optimized_ladder import UNTRIED, in_process, untried
from ridgeline.report.optimized_words import named
from ridgeline.report.plain import printable, shorten
from ridgeline.report.reasons import explain

MOST_KINDS = 6
"""Lines of reasons; with the line above them and what was not applied there are eight."""
_OTHER = "for other reasons"
_EXACT = "not with --keep-exact"
_TO_DO = 5
"""Of `_KINDS`, the first so many: a person can act on them, so they keep lines of their own."""
_KINDS = (
    ("the program could not be run again", r"^the baseline failed: "),
    ("there was no time", r"time (was|is) (left|over)|interrupted"),
    ("only if asked for, with --allow or --batch", r"--(allow|batch)\b"),
    ("only if asked for, with allow= or batch=", r"\b(allow|batch)="),
    (_EXACT, r"^it alters (rounding|semantics|random draws)$"),
    ("too little to gain", r"to(o little to)? gain$"),
    ("they save memory, and cost time", r"^it (saves|is for) memory"),
    ("it is so already, or better", r"already|by itself|does more|is set around|which is faster"),
    ("this program does not train", r"^nothing trains\b"),
    ("this program trains", r"\btrains\b"),
    ("not for this machine", r"GPU|CPU|CUDA|cuDNN|TF32|processor|tensor cores|version of torch"),
    ("nothing of the kind in this program", r"^no |^its |\b(is|has|have|put) no(ne)?\b|the same"),
)
"""By the first that fits: reasons that are several changes' own (a CPU has no cuDNN, no TF32) are
one to a reader. What fits none is under `_OTHER`."""


class Kind(Struct, frozen=True):
    why: str
    """As the search said it, where it said the same of all."""
    rungs: tuple[Rung, ...]
    name: str


def kinds(found: Optimized) -> tuple[Kind, ...]:
    """In the order of `_KINDS`, the small ones beyond `MOST_KINDS` among the others."""
    made: dict[str, list[Rung]] = {}
    reasons: dict[str, set[str]] = {}
    for group in untried(found):
        if group.status == "not tried":
            name = _kind(group.why)
            made.setdefault(name, []).extend(group.rungs)
            reasons.setdefault(name, set()).add(group.why)
    most = MOST_KINDS - 1 if _OTHER in made or len(made) > MOST_KINDS else MOST_KINDS
    names = [name for name, _ in _KINDS if name in made]
    first = [name for name, _ in _KINDS[:_TO_DO]]
    large = sorted(names, key=lambda name: (name not in first, -len(made[name])))[:most]
    told = [
        Kind(_reason(name, reasons[name]), tuple(made[name]), name)
        for name in names
        if name in large
    ]
    rest = [name for name in made if name not in large]
    if rest:
        whys = set[str]().union(*(reasons[name] for name in rest))
        rungs = tuple(rung for name in rest for rung in made[name])
        told.append(Kind(_only(whys) or _OTHER, rungs, _OTHER))
    return tuple(told)


def told(found: Optimized, room: int) -> list[tuple[str, str]]:
    """Labels, and beside each lines that are `room` wide at most."""
    shown = kinds(found)
    missed = tuple(rung for rung in found.rungs if rung.status == UNTRIED[0])
    made = []
    if missed:
        nothing = "nothing was found to change"
        why = _only({explain(rung.reason) for rung in missed}) or nothing
        made.append((UNTRIED[0], _line(Kind(why, missed, nothing), room)))
    if shown:
        number = sum(len(kind.rungs) for kind in shown)
        place = "`.rungs`" if in_process(found) else "the report, or --json"
        each = f"each with its reason in {place}" if number > 1 else f"see {place}"
        fixes = units.plural(number, "change")
        lines = [_line(kind, room) for kind in shown]
        made.append((UNTRIED[1], "\n".join([f"{fixes}, {each}:", *lines])))
    return made


def _line(kind: Kind, room: int) -> str:
    """The reason whole, and as many of the names as fit."""
    titles = list(dict.fromkeys(named((rung,)) for rung in kind.rungs))
    number = len(titles)
    whys = [printable(why) for why in (kind.why or "no reason was given", kind.name)]
    for why in whys:
        for shown in range(number, 0, -1):
            more = f" and {number - shown} more" if shown < number else ""
            line = f"{why}: {' · '.join(titles[:shown])}{more}"
            if cell_len(line) <= room:
                return line
    return shorten(f"{units.plural(number, 'change')}: {whys[-1]}", room)


def _kind(why: str) -> str:
    return next((name for name, fits in _KINDS if re.search(fits, why)), _OTHER)


def _reason(kind: str, reasons: set[str]) -> str:
    """The option is what a person can leave out, so it is named also where all share a reason."""
    return kind if kind == _EXACT else _only(reasons) or kind


def _only(reasons: set[str]) -> str:
    return next(iter(reasons)) if len(reasons) == 1 else ""
