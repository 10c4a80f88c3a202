"""Asks every rule and ranks the findings: what holds the program back, the most valuable first.

The value of a finding is its exposed time, weighted by how sure it is. Time that two findings are
charged with counts once: the later finding names the rule whose time it shares. A finding that
gains nothing until another is fixed is marked to come `after` that one: behind a loader that
workers cannot fill, the device's own work is hidden."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ridgeline.diagnosis.answers import answers
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.memory_room import growth
from ridgeline.diagnosis.recorded_run import Attempts
from ridgeline.diagnosis.rule import (
    BOUND_TOLERANCE,
    Budget,
    Registered,
    Rule,
    gain_without,
    registered,
)
from ridgeline.diagnosis.shares import Kind
from ridgeline.diagnosis.unexplained_time import Remains, largest_loss, remains
from ridgeline.records.finding import Confidence, Finding, Findings, UnaskedRule

MIN_KEPT_PCT = 0.5
"""A finding of a smaller share of the step, or of the memory, is not worth a line in a file."""
MIN_EXPLAINING_PCT = 3.0
"""A finding of a smaller share of the step explains nothing: two runs of one program differ by as
much."""
_KIND_OF_BUDGET: dict[Budget, Kind] = {
    "input": "input",
    "transfer": "transfer",
    "overhead": "overhead",
    "communication": "communication",
}
WEIGHT: dict[Confidence, float] = {"high": 1.0, "medium": 0.8, "low": 0.4, "unmeasured": 0.1}
MIN_HIDING_WAIT = 0.2
"""An input wait of this share of the step hides the device's work behind it."""
MIN_BUDGET_LEFT = 0.3
"""A finding shares another's time if less than this part of its own share is left of the budget."""
MAX_FINDINGS = 50
"""How many findings are kept; no program has had more than a dozen above 1 %."""
MAX_CLAIM_LENGTH, MAX_CHANGE_LENGTH = 400, 4000
"""In characters: a line of the user's source can have any length."""
MIN_CRAMPED_SHARE = 0.85
"""If this share of the device's memory is in use, saving memory is worth as much as saving time."""


def findings(case: Case, attempts: Attempts, rules: Sequence[Registered] | None = None) -> Findings:
    """Ask every rule, rank what they find, and name what they leave unexplained. A rule that fails
    is among the problems; the others still answer."""
    every = (attempts.part("the rules", registered) or ()) if rules is None else rules
    drawn: list[tuple[Finding, Budget]] = []
    unasked = []
    for one in every:
        lacks = tuple(need for need in one.rule.needs if not case.has(need))
        if lacks:
            unasked.append(UnaskedRule(one.rule.id, lacks))
            continue
        looked = attempts.part(f"the rule {one.rule.id}", lambda one=one: [*one.look(case)])  # type: ignore[misc]
        drawn += [(_bounded(finding, one.rule), one.rule.budget) for finding in looked or ()]
    kept = [(f, b) for f, b in drawn if f.share_pct >= MIN_KEPT_PCT or f.memory_pct >= MIN_KEPT_PCT
            or f.confidence == "unmeasured" or f.wrong_results]  # fmt: skip
    kept = _with_own_ids(kept)
    kept.sort(key=lambda pair: (-_value(pair[0], case), pair[0].rule, pair[0].id))
    ordered = tuple(_ordered(kept[:MAX_FINDINGS], case))
    budgets = {one.rule.id: one.rule.budget for one in every}
    explained = _explained(ordered, budgets)
    rest = attempts.part("what remains", lambda: remains(case, explained)) or Remains()
    return Findings(
        findings=ordered,
        gain_bound=round(total_bound(ordered, budgets, _budgets(case)), 3),
        left_out=len(kept[MAX_FINDINGS:]),
        answers=attempts.part("the answers", lambda: answers(case)) or (),
        ceiling_pct=rest.ceiling_pct,
        ceiling=rest.ceiling,
        remains=rest.parts,
        unexplained=rest.unexplained,
        loss=attempts.part("the largest loss", lambda: largest_loss(case, explained, ordered)),
        unlooked=tuple(unasked),
    )


def total_bound(
    findings: Sequence[Finding],
    budgets: Mapping[str, Budget],
    room: Mapping[Budget, float],
) -> float:
    """Return the most that fixing all findings can gain together.

    Findings of one budget save at most the sum of what each may save alone, and at most what the
    budget holds, or the largest of them if the budget was measured too small. Findings of different
    budgets add up, also those that gain nothing until another is fixed: once the loader is fixed,
    faster kernels count.
    """
    saved: dict[Budget, list[float]] = {}
    for finding in findings:
        budget = budgets.get(finding.rule, "work")
        saved.setdefault(budget, []).append(1 - 1 / max(finding.gain_bound, 1.0))
    return gain_without(
        sum(min(sum(each), max(*each, room.get(budget, 1.0))) for budget, each in saved.items())
    )


def _explained(findings: Sequence[Finding], budgets: Mapping[str, Budget]) -> dict[Kind, float]:
    """Return the share of the step that findings worth a line explain, by kind of waiting. The
    bound counts: in a trace alone the share of launches is less than the trace shows, because it is
    of untraced steps."""
    shares: dict[Kind, float] = {}
    for finding in findings:
        kind = _KIND_OF_BUDGET.get(budgets.get(finding.rule, "work"))
        if kind is not None and finding.share_pct >= MIN_EXPLAINING_PCT and not finding.shares_with:
            without_tolerance = (1 - 1 / max(finding.gain_bound, 1.0)) / (1 + BOUND_TOLERANCE)
            most = max(finding.share_pct / 100, without_tolerance)
            shares[kind] = shares.get(kind, 0.0) + most
    return shares


def _with_own_ids(drawn: list[tuple[Finding, Budget]]) -> list[tuple[Finding, Budget]]:
    """Return the findings with different ids: the second by line in one function is #2, in every
    run."""
    seen: dict[str, int] = {}
    found = []
    for finding, budget in sorted(drawn, key=lambda pair: (pair[0].id, pair[0].line or 0)):
        seen[finding.id] = seen.get(finding.id, 0) + 1
        number = f"#{seen[finding.id]}" if seen[finding.id] > 1 else ""
        found.append((replace(finding, id=finding.id + number), budget))
    return found


def _bounded(finding: Finding, rule: Rule) -> Finding:
    claim, change = finding.claim, finding.change
    if len(claim) > MAX_CLAIM_LENGTH:
        claim = f"{claim[: MAX_CLAIM_LENGTH - 1]}…"
    if len(change) > MAX_CHANGE_LENGTH:
        change = ""  # half a fix is none
    return replace(finding, family=rule.family, claim=claim, change=change)


def _value(finding: Finding, case: Case) -> float:
    if finding.wrong_results:
        return 1000.0 * WEIGHT[finding.confidence]  # correct results come before speed
    full = case.capture.out_of_memory if case.capture is not None else None
    if full is not None and finding.memory_pct:  # fitting into memory comes before speed
        return 100.0 + finding.memory_pct * WEIGHT[finding.confidence]
    memory = finding.memory_pct * (1.0 if _cramped(case) else 0.1)
    return max(finding.share_pct, memory) * WEIGHT[finding.confidence]


def _cramped(case: Case) -> bool:
    used, whole = case.memory.device_reserved_bytes, case.memory.device_total_bytes
    full = case.capture.out_of_memory if case.capture is not None else None
    return (
        full is not None
        or growth(case) is not None
        or bool(used and whole and used >= MIN_CRAMPED_SHARE * whole)
    )


def _ordered(drawn: Sequence[tuple[Finding, Budget]], case: Case) -> list[Finding]:
    left = _budgets(case)
    first: dict[Budget, Finding] = {}
    hiding = _hiding(drawn, case)
    found = []
    for finding, budget in drawn:
        share = finding.share_pct / 100
        room = left.get(budget, 1.0)
        if share and budget in first and room < MIN_BUDGET_LEFT * share:
            finding = replace(finding, shares_with=first[budget].rule)
        else:
            left[budget] = room - share
        if hiding is not None and budget in ("work", "overhead") and hiding.rule != finding.rule:
            finding = replace(finding, after=hiding.rule)
        first.setdefault(budget, finding)
        found.append(finding)
    return found


def _budgets(case: Case) -> dict[Budget, float]:
    """Return how much of the step can be charged to findings, by budget; nothing without shares."""
    if case.shares is None:
        return {}
    of = case.shares.undisturbed
    busy = case.busy if case.busy is not None else case.shares.busy
    return {
        "input": of["input"],
        "transfer": of["transfer"],
        # a wait of the host ends in launching late, and may hold copies: one pot
        "overhead": of["overhead"] + of["transfer"],
        "communication": of["communication"],
        "work": busy,
    }


def _hiding(drawn: Sequence[tuple[Finding, Budget]], case: Case) -> Finding | None:
    """Return the finding behind which the device's work is hidden: a loader with workers works
    beside the device, and if the device waits for it, it alone decides how often a step can be."""
    loaders = case.capture.loaders if case.capture is not None else ()
    beside = any(loader.workers and loader.batches for loader in loaders)
    if not beside or case.share_of("input") < MIN_HIDING_WAIT or (case.busy or 0.0) >= SATURATED:
        return None
    return next((finding for finding, budget in drawn if budget == "input"), None)
