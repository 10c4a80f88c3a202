"""One rank comes late to the collectives, and all others wait for it."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rank_delays import lateness, seen_line, under_rank_condition
from ridgeline.diagnosis.rule import Rule, derived, gain_without, make_finding, measured
from ridgeline.diagnosis.rules._ranks import exposed, mostly_waits, sending
from ridgeline.diagnosis.rules._user_code import place_at
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.sites import LateRank
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall

MIN_ALONE_SHARE = 0.05
"""Share of the step from which one rank's trace alone is reported."""

MAIN_SHARE = 0.5
"""Share of the time the rank was late from which what it did says something."""

RULE = Rule(id="late-rank", family="communication", budget="communication")


def look(case: Case) -> Iterator[Finding]:
    if case.across is None and not case.steps_compared:
        yield from _alone(case)
    elif (late := lateness(case)) is not None and not _told_as_pauses(case, late):
        yield _finding(case, late)
        if late.beside is not None:
            yield _finding(case, late.beside)


def _told_as_pauses(case: Case, late: LateRank) -> bool:
    """Return whether the late rank is the recorded one, and its lateness is mostly pauses between
    steps. Those pauses have findings of their own."""
    own = case.capture is not None and case.capture.rank == late.rank
    return own and case.times.pause_share >= MAIN_SHARE * late.share


def _alone(case: Case) -> Iterator[Finding]:
    """Yield a finding by one rank's trace alone, for collectives that take far longer than their
    bytes on a slow link."""
    sites = [site for site in case.exchange.sites if mostly_waits(case, site)]
    if not sites:
        return
    share = exposed(case, *sites) * (1 - sending(case, *sites))
    if share < MIN_ALONE_SHARE:
        return
    taken, size = sum(site.ns for site in sites) / 1e9, sum((s.bytes or 0) * s.calls for s in sites)
    yield make_finding(
        RULE,
        claim=f"collectives take {units.seconds(taken)} a step for {units.bytes_(size)}: this rank "
        "waits for another that comes late",
        share=share,
        confidence="low",
        place=sites[0].place,
        evidence=[
            measured("in collectives", f"{units.seconds(taken)} a step", taken),
            derived("bytes", f"{units.bytes_(size)}, at {units.bandwidth(size / taken)}", size),
        ],
        change="ridgeline trace trace-rank*.json.gz   # all ranks: who comes late, and with what",
        doubt="one rank's trace does not show the others; a very slow link looks the same",
    )


def _finding(case: Case, late: LateRank) -> Finding:
    place, line, call = seen_line(case.sources, late.cause)
    name = place.function if place is not None else ""
    if late.cause is not None and late.cause.encloses_steps:  # the loop itself is no cause
        place, name = place if line is not None else None, ""
    if place is None:
        place = place_at(late.place)
        line = place.line if place is not None else None
    behind = units.seconds(late.late_ns / 1e9)
    when = "in each step" if case.sites.steps != 1 else "in the one step recorded"
    if late.steps:
        when = "in the average step"
    return make_finding(
        RULE,
        claim=f"rank {late.rank} comes {behind} late {when}{_origin(late, name)}: the other ranks "
        "wait for it",
        share=late.share,
        bound=gain_without(late.waiting_share),
        confidence=_level(late, place),
        place=place,
        line=line,
        evidence=_evidence(late, place),
        change=_change(case, late, call, name),
        doubt="" if place is not None or late.basis == "steps" else _doubt(case.sites.stacks),
    )


def _origin(late: LateRank, name: str) -> str:
    if name:
        return f", because of {name}"
    return f", because of its {late.phase}" if late.phase and late.phase != "other" else ""


def _level(late: LateRank, place: Place | None) -> Confidence:
    if late.basis == "steps":
        return "high"
    if late.cause is None:
        return "low"
    return "high" if place is not None else "medium"


def _evidence(late: LateRank, place: Place | None) -> list[Evidence]:
    rank, facts = late.rank, []
    step = units.seconds(late.step_ns / 1e9)
    if late.steps:
        text = f"in {late.late_steps} of {units.plural(late.steps, 'step')}"
        facts.append(measured(f"rank {rank} was the slowest", text, late.late_steps))
        text = f"{units.seconds(late.phase_ns / 1e9)} longer than on the others in a step of {step}"
        facts.append(measured(f"its {late.phase}", text, late.phase_ns / 1e9))
    if late.collectives:
        text = f"to {late.late_collectives} of {units.plural(late.collectives, 'collective')}"
        part = late.late_collectives / late.collectives
        facts.append(measured(f"rank {rank} came last", text, part))
    waited = f"{units.seconds(late.late_ns / 1e9)} in a step of {step}"
    facts.append(measured("each other rank waits", waited, late.late_ns / 1e9))
    cause = late.cause
    if cause is None:
        return facts + _meanwhile(late)
    if place is not None:
        text = f"{units.seconds(cause.ns / 1e9)} a traced step on rank {rank}, "
        text += f"{units.seconds(cause.others_ns / 1e9)} on the others"
        facts.append(measured(f"in {place.function or 'that function'}", text, cause.ns / 1e9))
    return facts


def _meanwhile(late: LateRank) -> list[Evidence]:
    """Return where the rank was for most of the time that the others waited. This need not be the
    cause: the others may be there as long."""
    whole = sum(activity.ns for activity in late.doing)
    main = max(late.doing, key=lambda activity: activity.ns, default=None)
    if main is None or main.side == "before the trace" or main.ns < MAIN_SHARE * whole or not whole:
        return []
    text = f"{main.described}, {units.percent(main.ns / whole)} of that time"
    return [measured("meanwhile it was in", text, main.ns / 1e9)]


def _doubt(stacks: bool) -> str:
    chance = "by chance it may have been late in these few steps"
    if stacks:
        return f"{chance}; no function was found in which it spends more time than the others"
    return f"{chance}; without Python stacks no function can be compared between ranks"


def _change(case: Case, late: LateRank, call: SourceCall | None, name: str) -> str:
    if call is not None and call.name == name and under_rank_condition(case.sources, call):
        return f"if rank == {late.rank} and step % 100 == 0:   # not in every step\n    {call.text}"
    if name:
        return f"# {name}: the same work on every rank, or none of it inside the step"
    if late.phase == "input":
        return "# the same data, decoding and number of workers on every rank"
    if late.phase in ("forward", "backward"):
        return "# batches of the same size on every rank; else compare the ranks' processors"
    if case.sites.stacks:
        return f"ridgeline hardware   # on the machine of rank {late.rank}, and on another's"
    return "profile(…, with_stack=True)   # on every rank: tells the function that is longer on one"
