"""A rule asks one question about a program; its findings say what the answer costs.

Each file in `rules/` holds the rules of one noun, registered by existing: `RULE` and `look(case)`
if it is one rule; if there are several, for each a constant and a function that are named after the
rule's id, ITEM_SYNC and `item_sync(case)`. The function is pure. The Markdown file `item_sync.md`
beside it holds the rule's text, from which `ridgeline explain` and docs/rules/ are made.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import PurePath
from pkgutil import iter_modules
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.case import Case, Need
from ridgeline.diagnosis.rule_texts import rule_page
from ridgeline.records.finding import Confidence, Evidence, Finding, LineChange
from ridgeline.records.trace import Place
from ridgeline.report.views.rule import RulePage

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
"""The part of the step's time that a finding explains: a wait of the device (by what it waits for),
the device's work, or pauses between steps. A finding about memory explains no time."""
MAX_SHARE = 0.995
"""The largest share of a finding, which gives a bound of 200 ×. The remainder of the step is noise
beyond that."""
BOUND_TOLERANCE = 0.1
"""How far a bound lies above the measured share: by this part of the share, or of the remainder of
the step if that is smaller. With a tolerance of 0.01, four of 48 planted faults gained more than
their bounds: 9.15 × for 8.86, 3.38 × for 3.29, 3.36 × for 2.87 and 1.94 × for 1.86."""


class Change(str):
    """A fix as code, which also knows the lines of the program that it replaces."""

    edits: tuple[LineChange, ...] = ()


class Rule(Struct, frozen=True, kw_only=True):
    """The facts of a rule that the program needs. All arguments are literals, because
    `rule_texts` reads them without importing the rule."""

    id: str
    """Lower case with hyphens, named after the fault: loader-starves."""
    family: Family
    budget: Budget
    needs: tuple[Need, ...] = ()

    @property
    def docs(self) -> str:
        return f"docs/rules/{self.id}.md"

    @property
    def text(self) -> RulePage:
        """The rule's page, from the Markdown file beside its Python file."""
        return rule_page(self.id)


class Registered(Struct, frozen=True):
    rule: Rule
    look: Callable[[Case], Iterable[Finding]]


def registered() -> tuple[Registered, ...]:
    """Return all rules, sorted by id."""
    from ridgeline.diagnosis import rules

    modules = [
        vars(import_module(f"{rules.__name__}.{module.name}"))
        for module in iter_modules(rules.__path__)
        if not module.name.startswith("_")
    ]
    every = (
        Registered(rule, names["look" if name == "RULE" else rule.id.replace("-", "_")])
        for names in modules
        for name, rule in names.items()
        if isinstance(rule, Rule)
    )
    return tuple(sorted(every, key=lambda entry: entry.rule.id))


def make_finding(
    rule: Rule,
    *,
    claim: str,
    share: float,
    evidence: Sequence[Evidence] = (),
    place: Place | None = None,
    line: int | None = None,
    module: str = "",
    fix: str = "",
    change: str = "",
    change_at: Place | None = None,
    confidence: Confidence = "medium",
    doubt: str = "",
    memory: float = 0.0,
    bound: float | None = None,
    wrong_results: bool = False,
) -> Finding:
    """Return a finding of a rule.

    share: the exposed time that would be saved, as a fraction of the step.
    line: the line inside the measured function where the source shows the fault.
    fix: the id of the fix that does what the finding advises.
    change_at: the line that the change replaces, if it is not the finding's own.
    memory: the fraction of the peak memory that would be saved.
    bound: the most that the fix can gain, if it is not 1 / (1 - share). The tolerance of the
        measurement is added to either.
    wrong_results: the program probably does not compute what it is meant to compute.
    """
    share = min(max(float(share), 0.0), MAX_SHARE)
    if bound is None:
        bound = gain_without(share)
    file = place.file if place is not None else ""
    if line is None and place is not None:
        line = place.line
    function = place.function if place is not None else ""
    return Finding(
        rule=rule.id,
        id=":".join(part for part in (rule.id, file, function or module) if part),
        claim=_capitalized(claim),
        share_pct=round(100 * share, 2),
        gain_bound=round(with_tolerance(float(bound)), 3),
        confidence=confidence,
        file=file,
        line=int(line) if line is not None else None,
        function=function,
        module=module,
        evidence=tuple(_with_python_float(each) for each in evidence),
        fix=fix,
        change=_with_line_comment(str(change), change_at, file, line),
        edits=change.edits if isinstance(change, Change) else (),
        docs=rule.docs,
        doubt=doubt,
        wrong_results=wrong_results,
        memory_pct=round(100 * float(min(max(memory, 0.0), 1.0)), 2),
    )


def gain_without(share: float) -> float:
    """Return the speedup of a step that loses `share` of its time, at most 200 ×."""
    return 1 / (1 - min(share, MAX_SHARE))


def with_tolerance(bound: float) -> float:
    """Return the bound if the share behind it may be larger by the tolerance of a measurement."""
    saved = 1 - 1 / max(bound, 1.0)
    return gain_without(saved + BOUND_TOLERANCE * min(saved, 1 - saved))


def _capitalized(claim: str) -> str:
    """Capitalize the first word, unless it is a name from the program: "clip() goes …"."""
    first = claim.partition(" ")[0]
    return claim[:1].upper() + claim[1:] if first.isalpha() and first.islower() else claim


def _with_line_comment(change: str, where: Place | None, file: str, line: int | None) -> str:
    """Put a comment above the change that names the line it replaces, if that line is not the
    finding's own."""
    if not change or where is None:
        return change
    own, other = PurePath(file).parts, PurePath(where.file).parts
    both = min(len(own), len(other))  # one may be absolute, the other as the user typed it
    same = own[-both:] == other[-both:] if both else False
    if same and where.line == line:
        return change
    same_name = not same and own[-1:] == other[-1:]  # another __init__.py
    return f"# {PurePath(*other[-2 if same_name else -1 :])}:{where.line}\n{change}"


def _with_python_float(evidence: Evidence) -> Evidence:
    """Convert a value from numpy, which cannot be written to a file."""
    value = evidence.value
    return replace(evidence, value=None if value is None else float(value))


def measured(what: str, text: str, value: float | None = None) -> Evidence:
    return Evidence(what=what, text=text, value=value)


def derived(what: str, text: str, value: float | None = None) -> Evidence:
    return Evidence(what=what, text=text, value=value, source="derived")


def read(what: str, text: str, value: float | None = None) -> Evidence:
    """Return a fact from the program's source or from its settings."""
    return Evidence(what=what, text=text, value=value, source="read")


def of_step(what: str, share: float) -> Evidence:
    return measured(what, f"{units.percent(share)} of the step", share)


def seconds_of_step(case: Case, what: str, share: float) -> Evidence:
    seconds = units.seconds(share * case.step_ms / 1e3)
    return derived(what, f"{seconds}, {units.percent(share)} of the step", share)


def work_time(case: Case, what: str, ns: float) -> Evidence:
    """Return operator time of a traced step as milliseconds of the untraced step."""
    return measured(what, f"{units.seconds(case.work_s(ns))} a step", 1e3 * case.work_s(ns))
