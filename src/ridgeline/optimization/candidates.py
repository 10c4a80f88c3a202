"""Which changes are tried, in which order: those that answer a finding first, by what it allows to
gain; then by what the step's own budget does, which says less. What has to compile comes last: its
trials take long, and it compiles what the others have made of the program. But where the device
waits for launches, nothing pays before they are gone: then CUDA graphs come first."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from ridgeline.errors import UsageError
from ridgeline.fixes.fix import Fix, Registered, find_fix, registered
from ridgeline.fixes.fused_attention import fused
from ridgeline.records.facts import Reason, because
from ridgeline.records.finding import Finding
from ridgeline.records.ground import Ground
from ridgeline.records.optimized import Goal, SearchCode
from ridgeline.records.parity import Alters
from ridgeline.records.trial import Asked, FunctionEdit

_CLASSES: tuple[Alters, ...] = ("nothing", "rounding", "semantics")
_PRECISIONS = ("float32", "tf32", "float16", "bfloat16")


class Candidate(Struct, frozen=True, kw_only=True):
    fix: Fix
    options: dict[str, str] = {}
    unable: Reason | None = None
    """Why the fix cannot help here; None if it may."""
    bound: float | None = None
    """The most that the change can gain alone on the unchanged program; None if there is no bound.
    """
    promise: float = 1.0
    """The gain that is hoped for, from the bound and from the findings that the change mends. It
    decides the order of trials."""
    others: tuple[dict[str, str], ...] = ()
    """Other options worth trying."""
    brings: str = ""
    """The change that is put on with it from the first."""

    @property
    def asked(self) -> Asked:
        return Asked(fix=self.fix.id, options=self.options)


def asked(fixes: Sequence[Candidate]) -> tuple[Asked, ...]:
    """As they are put on: the same set in the same order always, so that it is one set. What looks
    at the precision comes after it, and what compiles sees all others."""

    def order(one: Candidate) -> tuple[bool, bool, str]:
        return one.fix.slot == "compile", one.fix.slot != "precision", one.fix.id

    return tuple(one.asked for one in sorted(fixes, key=order))


def alters(fixes: Iterable[Fix]) -> Alters:
    """The most that any of them may."""
    return max((one.alters for one in fixes), key=_CLASSES.index, default="nothing")


def precision(fixes: Iterable[Fix]) -> str:
    """The lowest of them."""
    known = [one.precision for one in fixes if one.precision in _PRECISIONS]
    return max(known, key=_PRECISIONS.index, default="float32")


BUSY = 0.85
"""A device that works less of the step waits for launches, or for something else of the host."""
GRAPHS = "cuda-graph-candidate"


def candidates(
    ground: Ground,
    findings: Sequence[Finding],
    fixes: Sequence[Registered] | None = None,
    *,
    goal: Goal = "speed",
    kept: Sequence[Asked] = (),
) -> list[Candidate]:
    """`kept`: what is on already, which may make others possible."""
    for one in kept:
        after = find_fix(one.fix).after
        ground = after(ground, one.options) if after is not None else ground
    found = [_candidate(one, ground, findings, goal) for one in fixes or registered()]
    rules = {finding.rule for finding in findings}

    # What waits for batches or copies does not wait for launches.
    known = ground.busy + ground.input_share + ground.copy_share
    launches = ground.device == "cuda" and known < BUSY

    def order(one: Candidate) -> tuple[bool, bool, bool, bool, int, bool, float, str]:
        fix = one.fix
        graphs = launches and GRAPHS in fix.answers and fix.longer == 1
        return (
            one.unable is not None,
            not (goal == "memory" and fix.saves == "memory"),
            not graphs,
            fix.slow_start,
            fix.longer,
            not rules & set(fix.answers),
            -one.promise,
            fix.id,
        )

    return sorted(found, key=order)


def _bound(
    one: Registered, ground: Ground, findings: Sequence[Finding]
) -> tuple[float | None, float]:
    """Return the bound of a change, and the gain that is hoped for. The gain of a finding raises a
    bound, but does not set one where there is none: a change may do more than mend that finding."""
    answered = [f.gain_bound for f in findings if f.rule in one.fix.answers]
    by_budget = one.bound(ground) if one.bound is not None else None
    promise = round(max([1.0, *answered, by_budget or 1.0]), 3)
    return promise if by_budget is not None else None, promise


def _candidate(
    one: Registered, ground: Ground, findings: Sequence[Finding], goal: Goal
) -> Candidate:
    detail = one.reason_to_skip(ground)
    unable = because(SearchCode.CANNOT_HELP, detail=detail) if detail else None
    if unable is None and one.fix.saves == "memory" and goal != "memory":
        unable = because(SearchCode.SAVES_MEMORY, goal=goal)
    can_try = unable is None
    bound, promise = _bound(one, ground, findings) if can_try and goal != "memory" else (None, 1)
    options = one.choices(ground) if one.choices is not None and can_try else ()
    return Candidate(
        fix=one.fix,
        options=options[0] if options else {},
        unable=unable,
        bound=bound,
        promise=promise,
        others=options[1:],
        brings=one.brings(ground, options[0]) if one.brings is not None and options else "",
    )


def rewritten(findings: Sequence[Finding]) -> tuple[tuple[FunctionEdit, ...], str]:
    """Of findings that say so; and why not, where there is none."""
    edits: list[FunctionEdit] = []
    why = "no attention that is written out was found to cost time"
    for finding in findings:
        if finding.rule != "written-attention" or not finding.file or finding.line is None:
            continue
        path = Path(finding.file).absolute()
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError):
            why = f"{finding.file} cannot be read"
            continue
        found = fused(text, finding.line)
        if isinstance(found, str):
            why = found
            continue
        edits.append(
            FunctionEdit(
                file=str(path), line=found.line, name=found.function, text=found.text,
                new_line=found.line,
            )
        )  # fmt: skip
    return tuple(edits), "" if edits else why


BATCH = "larger-batch"
"""Asked for apart: it has a row of its own."""


class Allowed(Struct, frozen=True):
    names: tuple[str, ...] = ()
    needless: tuple[str, ...] = ()
    """A sentence for each that is tried without being allowed."""


def allowed(asked: Iterable[str], option: str = "allow", batch: str = "batch=True") -> Allowed:
    """`option`, `batch`: how they are written where they are asked for."""
    names = tuple(dict.fromkeys(name.strip() for name in asked if name.strip()))
    if not names:
        return Allowed()
    known = {one.fix.id: one.fix.alters for one in registered()}
    semantic = [n for n, alters in sorted(known.items()) if alters == "semantics" and n != BATCH]
    needless = []
    for name in names:
        if name == BATCH:
            raise UsageError(f"{option} {name}: larger batches are asked for with {batch}")
        if name not in known:
            raise UsageError(
                f"{option} {name}: there is no such change", f"one of: {', '.join(semantic)}"
            )
        if name not in semantic:
            alters = "rounding alone" if known[name] == "rounding" else "nothing"
            told = f"{option} {name}: it alters {alters}, and is tried without being allowed"
            needless.append(f"{told}; to allow are {', '.join(semantic)}")
    return Allowed(tuple(name for name in names if name in semantic), tuple(needless))
