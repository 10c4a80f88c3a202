"""One rank comes late to the collectives, and all others wait for it."""

import ast
from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rule import Rule, found
from ridgeline.diagnose.rules._ranks import exposed, mostly_waits, sending
from ridgeline.diagnose.rules._ranks_late import BEFORE, Lateness, lateness
from ridgeline.diagnose.source.sources import Source
from ridgeline.records.collective_site import RankPlace
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.trace import Place

ALONE = 0.05
"""Of the step, from one rank's trace alone."""

MOSTLY = 0.5
"""Of the time it was late: what it did for less says little."""

RULE = Rule(
    id="late-rank",
    family="communication",
    title="One rank comes late and the others wait",
    budget="communication",
    looks_at="The traces of several ranks, their clocks aligned by the ends of collectives: who "
    "came last to each, how long the others waited, and in which of the user's functions the late "
    "rank spends time that the others do not.",
    threshold="One rank causes 60 % of all waiting and comes last to half of the collectives, and "
    "the others wait 3 % of the step for it. A cause is named only where the rank spends more time "
    "in that function than the others do. On CPUs, where ranks are late by chance of the "
    "scheduler, such a function is asked for. From one rank's trace: collectives that take more "
    "than twice what their bytes need on a slow link, and 5 % of the step.",
    why="A collective begins when the last rank has come. One that writes logs, evaluates, loads "
    "larger batches or runs on a slower device makes all of them as slow as itself, and step "
    "times, equal on all ranks, do not show who it was.",
    fix="Give every rank the same work, or take the extra work out of the step:\n\n"
    "```python\n"
    "if rank == 0 and step % 100 == 0:   # not in every step\n"
    "    log(model)\n"
    "```\n\n"
    "Or hand it to a thread or another process; sort samples so that batches are equally long "
    "(`DistributedSampler` over buckets of length); look at the slow rank's machine with "
    "`ridgeline hardware`.",
    wrong_when="A trace holds a few steps: a rank that was late in all of them may not be so "
    "later. Where several ranks share a machine's cores, the one the scheduler left waiting is "
    "late.",
)


def look(case: Case) -> Iterator[Finding]:
    across = case.across
    if across is None:
        yield from _alone(case)
        return
    late = lateness(case, across)
    if late is not None:
        yield _finding(case, late)


def _alone(case: Case) -> Iterator[Finding]:
    """Of one rank's trace: collectives that take far longer than their bytes on a slow link."""
    sites = [site for site in case.exchange.sites if mostly_waits(case, site)]
    if not sites:
        return
    share = exposed(case, *sites) * (1 - sending(case, *sites))
    if share < ALONE:
        return
    taken, size = sum(site.ns for site in sites) / 1e9, sum((s.bytes or 0) * s.calls for s in sites)
    yield found(
        RULE,
        claim=f"collectives take {units.seconds(taken)} a step for {units.bytes_(size)}: this rank "
        "waits for another that comes late",
        share=share,
        confidence="low",
        place=sites[0].place,
        evidence=[
            Evidence(what="in collectives", text=f"{units.seconds(taken)} a step", value=taken),
            Evidence(
                what="bytes",
                text=f"{units.bytes_(size)}, at {units.bandwidth(size / taken)}",
                value=size,
                source="derived",
            ),
        ],
        change="ridgeline trace trace-rank*.json.gz   # all ranks: who comes late, and with what",
        doubt="one rank's trace does not show the others; a very slow link looks the same",
    )


def _finding(case: Case, late: Lateness) -> Finding:
    cause, rank, waited = late.cause, late.rank.rank, units.seconds(late.waited_ns / 1e9)
    said = []
    if late.collectives:
        said.append(
            Evidence(
                what=f"rank {rank} came last",
                text=f"to {late.last} of {units.plural(late.collectives, 'collective')}",
                value=late.last / late.collectives,
            )
        )
    what = (
        "each other rank waits" if late.collectives else "each other rank is longer in collectives"
    )
    said.append(Evidence(what=what, text=f"{waited} a step", value=late.waited_ns / 1e9))
    place, line, call = None, None, ""
    if cause is not None:
        place, line, call = _placed(case, cause)
        said.append(
            Evidence(
                what=f"in {place.function or 'that function'}",
                text=f"{units.seconds(late.scale * cause.ns / 1e9)} a step on rank {rank}, "
                f"{units.seconds(late.scale * cause.others_ns / 1e9)} on the others",
                value=late.scale * cause.ns / 1e9,
            )
        )
    else:
        said += _meanwhile(late)
    name = place.function if place is not None else ""
    when = "in each step" if case.sites.steps != 1 else "in the one step recorded"
    level: Confidence = "low" if cause is None else "high" if line is not None else "medium"
    return found(
        RULE,
        claim=f"rank {rank} comes {waited} late {when}"
        + (f", from {name}" if name else "")
        + ": the other ranks wait for it",
        share=late.share,
        confidence=level,
        place=place,
        line=line,
        evidence=said,
        change=_change(rank, call, name, case.sites.stacks),
        doubt="" if cause is not None else _doubt(case.sites.stacks),
    )


def _meanwhile(late: Lateness) -> list[Evidence]:
    """Where it was for most of the time the others waited. No cause: they may be there as long."""
    whole = sum(ns for _, ns in late.rank.doing)
    name, ns = max(late.rank.doing, key=lambda one: one[1], default=("", 0))
    if name == BEFORE or not whole or ns < MOSTLY * whole:
        return []
    text = f"{name.removeprefix('host: ')}, {units.percent(ns / whole)} of that time"
    return [Evidence(what="meanwhile it was in", text=text, value=ns / 1e9)]


def _doubt(stacks: bool) -> str:
    chance = "by chance it may have been late in these few steps"
    if stacks:
        return f"{chance}; no function was found in which it spends more time than the others"
    return f"{chance}; without Python stacks no function can be compared between ranks"


def _placed(case: Case, cause: RankPlace) -> tuple[Place, int | None, str]:
    """The function, and the line that sends this rank alone into it: a call under a condition on
    the rank."""
    source = case.sources.get(cause.place.file)
    if source is None:
        return cause.place, None, ""
    scope = source.scope(cause.place.line)
    name = getattr(scope, "name", cause.place.function)
    begins = getattr(scope, "lineno", cause.place.line)
    place = Place(file=cause.place.file, line=begins, function=name)
    called = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == name
        and _by_rank(source, node)
    ]  # fmt: skip
    if called:
        text = ast.get_source_segment(source.text, called[0]) or ast.unparse(called[0])
        return place, called[0].lineno, text
    inside = [
        node.body[0].lineno
        for node in source.walk(scope)
        if isinstance(node, ast.If) and _of_rank(node.test)
    ]
    return place, inside[0] if inside else None, ""


def _by_rank(source: Source, node: ast.AST) -> bool:
    return any(isinstance(up, ast.If) and _of_rank(up.test) for up in source.parents(node))


def _of_rank(test: ast.expr) -> bool:
    words = ast.unparse(test).lower()
    return (
        "rank" in words or "is_main" in words or "is_master" in words or "master_process" in words
    )


def _change(rank: int, call: str, name: str, stacks: bool) -> str:
    if call:
        return f"if rank == {rank} and step % 100 == 0:   # not in every step\n    {call}"
    if name:
        return f"# {name}: the same work on every rank, or none of it inside the step"
    if stacks:
        return f"ridgeline hardware   # on the machine of rank {rank}, and on another's"
    return "profile(…, with_stack=True)   # on every rank: tells the function that is longer on one"
