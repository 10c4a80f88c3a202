"""A rule: a question asked of every program, and what its answer is worth.

One file a rule in `rules/`, with `RULE` and `look(case)`: it is registered by existing. `look` is a
pure function of the case. What it says here is what `ridgeline explain` and docs/rules/ show.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import PurePath
from pkgutil import iter_modules
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case, Need
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.trace import Place

Family = Literal[
    "input",
    "transfer",
    "synchronisation",
    "launch",
    "precision",
    "kernels",
    "memory",
    "compile",
    "machine",
    "communication",
    "correctness",
]
Budget = Literal["input", "transfer", "overhead", "communication", "work", "pauses", "memory"]
"""Which time of the step a finding is charged to: the device's waits by what it waits for, its
work, pauses between steps, or (memory) none."""
MOST_SHARE = 0.995
"""A bound of 200 ×: beyond it the step's own remainder is noise."""
KNOWN = 0.01
"""Of a share: kernels' times repeat to no better than that from run to run (clocks, caches), so a
bound allows for as much."""


class Rule(Struct, frozen=True, kw_only=True):
    id: str
    """Lower case with hyphens, named after the fault: loader-starves."""
    family: Family
    title: str
    """A line: The loader cannot feed the device"""
    budget: Budget
    needs: tuple[Need, ...] = ()
    looks_at: str
    """The evidence, in a sentence or two."""
    threshold: str
    """From which value on, and why that one."""
    why: str
    """Why it costs time or memory: a paragraph a student understands."""
    fix: str
    """What to do, with code: Markdown."""
    wrong_when: str
    """When a finding of it may be wrong, or the fix not worth it."""

    @property
    def docs(self) -> str:
        return f"docs/rules/{self.id}.md"


class Registered(Struct, frozen=True):
    rule: Rule
    look: Callable[[Case], Iterable[Finding]]


def registered() -> tuple[Registered, ...]:
    """Every rule there is, by id."""
    from ridgeline.diagnosis import rules

    found = []
    for module in iter_modules(rules.__path__):
        if not module.name.startswith("_"):
            loaded = import_module(f"{rules.__name__}.{module.name}")
            found.append(Registered(loaded.RULE, loaded.look))
    return tuple(sorted(found, key=lambda one: one.rule.id))


def found(
    rule: Rule,
    *,
    claim: str,
    share: float,
    evidence: Sequence[Evidence] = (),
    place: Place | None = None,
    line: int | None = None,
    module: str = "",
    change: str = "",
    change_at: Place | None = None,
    confidence: Confidence = "medium",
    doubt: str = "",
    memory: float = 0.0,
    bound: float | None = None,
    wrong_results: bool = False,
) -> Finding:
    """A finding of a rule. `share`: exposed time, a fraction of the step, that would be gone with
    it; `line`: where the source shows it inside the measured function; `change_at`: the line the
    change is of, where not this one; `memory`: fraction of the peak saved; `bound`: the gain's
    bound, where another than the share's own, 1 / (1 - share); `wrong_results`: the program
    probably does not compute what it is meant to."""
    share = min(max(float(share), 0.0), MOST_SHARE)
    if bound is None:
        bound = 1 / (1 - min(share * (1 + KNOWN), MOST_SHARE))
    file = place.file if place is not None else ""
    at = line if line is not None else place.line if place is not None else None
    function = place.function if place is not None else ""
    return Finding(
        rule=rule.id,
        id=":".join(part for part in (rule.id, file, function or module) if part),
        claim=_sentence(claim),
        share_pct=round(100 * share, 2),
        gain_bound=round(float(bound), 3),
        confidence=confidence,
        file=file,
        line=int(at) if at is not None else None,
        function=function,
        module=module,
        evidence=tuple(_plain(one) for one in evidence),
        change=_placed(change, change_at, file, at),
        docs=rule.docs,
        doubt=doubt,
        wrong_results=wrong_results,
        memory_pct=round(100 * float(min(max(memory, 0.0), 1.0)), 2),
    )


def _sentence(claim: str) -> str:
    """With a capital, unless it begins with a name from the program: clip() goes …"""
    first = claim.partition(" ")[0]
    return claim[:1].upper() + claim[1:] if first.isalpha() and first.islower() else claim


def _placed(change: str, where: Place | None, file: str, line: int | None) -> str:
    """With a comment that names the line it replaces, where that is another than the finding's."""
    if not change or where is None:
        return change
    own, other = PurePath(file).parts, PurePath(where.file).parts
    both = min(len(own), len(other))  # one may be absolute, the other as it was typed
    same = own[-both:] == other[-both:] if both else False
    if same and where.line == line:
        return change
    alike = not same and own[-1:] == other[-1:]  # another __init__.py
    return f"# {PurePath(*other[-2 if alike else -1 :])}:{where.line}\n{change}"


def _plain(evidence: Evidence) -> Evidence:
    """With a number of Python's own: those of numpy cannot be written to a file."""
    value = evidence.value
    return replace(evidence, value=None if value is None else float(value))
