"""Chooses which fixes may be tried on a program, and in which order.

Fixes that answer a finding come first, by what the finding allows to gain; then the others, by what
the budget of the step allows, which says less. What has to compile comes last: its trials take
long, and it compiles what the other fixes have made of the program. But if the device waits for
launches, nothing pays before those waits are gone, and CUDA graphs come first.
"""

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
from ridgeline.records.reason_codes import Skip
from ridgeline.records.trial import Asked, FunctionEdit

_CLASSES: tuple[Alters, ...] = ("nothing", "rounding", "semantics")
_PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
MIN_BUSY_SHARE = 0.85
"""A device that works for less of the step waits for launches, or for something else of the
host."""
GRAPHS_RULE = "cuda-graph-candidate"
LARGER_BATCH = "larger-batch"
"""This fix is asked for by an option of its own, and has a row of its own."""


class Candidate(Struct, frozen=True, kw_only=True):
    """A fix that may be tried on this program."""

    fix: Fix
    options: dict[str, str] = {}
    unable: Reason | None = None
    """Why the fix cannot help here; None if it may."""
    bound: float | None = None
    """The most that the fix can gain alone on the unchanged program; None if there is no bound."""
    promise: float = 1.0
    """The gain that is hoped for, from the bound and from the findings that the fix answers. It
    decides the order of trials."""
    others: tuple[dict[str, str], ...] = ()
    """Other options worth trying."""
    brings: str = ""
    """The fix that is applied together with it from the first."""

    @property
    def asked(self) -> Asked:
        return Asked(fix=self.fix.id, options=self.options)


def asked(fixes: Sequence[Candidate]) -> tuple[Asked, ...]:
    """Return the fixes in the order in which they are applied, which is always the same for the
    same set. What looks at the precision comes after it, and what compiles sees all others."""

    def order(one: Candidate) -> tuple[bool, bool, str]:
        return one.fix.slot == "compile", one.fix.slot != "precision", one.fix.id

    return tuple(one.asked for one in sorted(fixes, key=order))


def alters(fixes: Iterable[Fix]) -> Alters:
    """Return the most that any of the fixes may alter."""
    return max((one.alters for one in fixes), key=_CLASSES.index, default="nothing")


def precision(fixes: Iterable[Fix]) -> str:
    """Return the lowest precision of the fixes."""
    known = [one.precision for one in fixes if one.precision in _PRECISIONS]
    return max(known, key=_PRECISIONS.index, default="float32")


_MEMORY_COST = {
    "chunked-cross-entropy": 0.1,
    "checkpointing": 0.33,
    "gradient-accumulation": 0.34,
}
"""The share of a step that a fix which saves memory is expected to add, by what it computes again.
The cheapest is tried first."""


def candidates(
    ground: Ground,
    findings: Sequence[Finding],
    fixes: Sequence[Registered] | None = None,
    *,
    goal: Goal = "speed",
    kept: Sequence[Asked] = (),
) -> list[Candidate]:
    """Return all fixes in the order in which they should be tried; those that cannot help come
    last. `kept` are applied already, which may make other fixes possible."""
    for one in kept:
        after = find_fix(one.fix).after
        ground = after(ground, one.options) if after is not None else ground
    rules = {finding.rule for finding in findings}
    # A device that waits for batches or copies does not wait for launches.
    explained = ground.busy + ground.input_share + ground.copy_share
    waits_for_launches = ground.device == "cuda" and explained < MIN_BUSY_SHARE

    def order(one: Candidate) -> tuple[bool, bool, float, bool, bool, int, bool, float, str]:
        fix = one.fix
        graphs = waits_for_launches and GRAPHS_RULE in fix.answers and fix.longer == 1
        return (
            one.unable is not None,
            not (goal == "memory" and fix.saves == "memory"),
            _MEMORY_COST.get(fix.id, 0.0) if goal == "memory" else 0.0,
            not graphs,
            fix.slow_start,
            fix.longer,
            not rules & set(fix.answers),
            -one.promise,
            fix.id,
        )

    every = [_candidate(one, ground, findings, goal) for one in fixes or registered()]
    return sorted(every, key=order)


def _bound(
    one: Registered, ground: Ground, findings: Sequence[Finding]
) -> tuple[float | None, float]:
    """Return the bound of a fix, and the gain that is hoped for. The gain of a finding raises a
    bound, but does not set one: a fix may do more than answer that finding."""
    answered = [f.gain_bound for f in findings if f.rule in one.fix.answers]
    by_budget = one.bound(ground) if one.bound is not None else None
    promise = round(max([1.0, *answered, by_budget or 1.0]), 3)
    return promise if by_budget is not None else None, promise


def _candidate(
    one: Registered, ground: Ground, findings: Sequence[Finding], goal: Goal
) -> Candidate:
    unable = one.reason_to_skip(ground)
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


def attention_edits(
    findings: Sequence[Finding],
) -> tuple[tuple[FunctionEdit, ...], Reason | None]:
    """Return the functions in which attention is written out, rewritten, where a finding says so;
    and why there is none."""
    edits: list[FunctionEdit] = []
    reason = because(Skip.NO_WRITTEN_ATTENTION)
    for finding in findings:
        if finding.rule != "written-attention" or not finding.file or finding.line is None:
            continue
        path = Path(finding.file).absolute()
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError):
            reason = because(Skip.SOURCE_FILE_MISSING, file=finding.file)
            continue
        rewritten = fused(text, finding.line)
        if isinstance(rewritten, Reason):
            reason = rewritten
            continue
        edits.append(
            FunctionEdit(
                file=str(path), line=rewritten.line, name=rewritten.function, text=rewritten.text,
                new_line=rewritten.line,
            )
        )  # fmt: skip
    return tuple(edits), None if edits else reason


class AllowedFixes(Struct, frozen=True):
    names: tuple[str, ...] = ()
    needless: tuple[str, ...] = ()
    """A sentence for each fix that is tried without being allowed."""


def allowed_fixes(
    names: Iterable[str], option: str = "allow", batch: str = "batch=True"
) -> AllowedFixes:
    """Return the named fixes that alter what is computed. `option` and `batch` are how the caller
    writes these arguments. Raise UsageError for a name that is not such a fix."""
    wanted = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not wanted:
        return AllowedFixes()
    known = {one.fix.id: one.fix.alters for one in registered()}
    semantic = sorted(
        name for name, alters in known.items() if alters == "semantics" and name != LARGER_BATCH
    )
    needless = []
    for name in wanted:
        if name == LARGER_BATCH:
            raise UsageError(f"{option} {name}: larger batches are asked for with {batch}")
        if name not in known:
            raise UsageError(
                f"{option} {name}: there is no such fix", f"one of: {', '.join(semantic)}"
            )
        if name not in semantic:
            alters = "rounding alone" if known[name] == "rounding" else "nothing"
            needless.append(
                f"{option} {name}: it alters {alters} and is tried anyway; only these need to be "
                f"allowed: {', '.join(semantic)}"
            )
    return AllowedFixes(tuple(name for name in wanted if name in semantic), tuple(needless))
