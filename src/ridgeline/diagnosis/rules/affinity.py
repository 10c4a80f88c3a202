"""The program is held to fewer cores than it has work for, while others stand idle."""

import ast
from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.machine_use import below_ceilings, cores, host_use, used_cores
from ridgeline.diagnosis.rule import Rule, make_finding, measured, read
from ridgeline.diagnosis.rules._user_code import located_call, user_calls
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.source.calls import SourceCall
from ridgeline.source.file import parsed_expression

FULL_CORE_TOLERANCE = 0.12
"""How far from a whole number of cores the use of full ones may be. Two readings a look and the
rest of the machine take as much."""
MAX_FREE_SHARE = 0.3
"""Share of the cores that the system holds the program to, which may be free."""
MIN_IDLE_CORES = 0.4
"""Cores that stood idle. With fewer, there is nothing to move to."""
MIN_SHARE = 0.05
_SETTERS = ("sched_setaffinity", "cpu_affinity", "pthread_setaffinity_np")
_BINDING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")

RULE = Rule(id="affinity", family="machine", budget="work", needs=("timed", "telemetry"))


def look(case: Case) -> Iterator[Finding]:
    seen = case.telemetered
    used = used_cores(case)
    allowed = case.capture.flags.allowed_cores if case.capture is not None else 0
    measured_ = 0 < allowed < max(case.processors, cores(case))
    held = allowed if measured_ else max(round(used), 1)
    threads = case.capture.flags.threads if case.capture is not None and not case.on_gpu else 1
    wanted = max(threads, 1) + seen.workers
    idle = _idle(case, used)
    if measured_:
        near = used >= (1 - MAX_FREE_SHARE) * held
    else:
        near = abs(used - held) <= FULL_CORE_TOLERANCE * held
    if not near or wanted <= held or idle < MIN_IDLE_CORES:
        return
    call, named = _call(case, held)
    bound = _bound(case)
    starved = not allowed and seen.workers > held and case.share_of("input") > MIN_SHARE
    started_so = held == cores(case) < case.processors  # by taskset, a scheduler, a container
    if not (measured_ or call or bound or starved or started_so):
        return  # one busy thread beside idle ones is how most programs run
    share = 1 - held / min(wanted, held + idle)
    if threads > held:  # threads on one core spin while they wait for each other: it costs more
        share = max(share, below_ceilings(case) or 0.0)
    if share < MIN_SHARE:
        return
    known = call is not None or bool(bound) or measured_
    level: Confidence = "high" if named else "medium" if known else "low"
    yield make_finding(
        RULE,
        claim=f"{_who(threads, seen.workers)} share {units.plural(held, 'core')} while "
        f"{units.significant(idle, 2)} stand idle",
        share=share,
        confidence=level,
        place=located_call(case, call),
        evidence=_evidence(case, used, idle, call, bound),
        fix="affinity",
        change=_change(call, bound),
        doubt="" if call is not None else "the work may be such that one core is enough for it",
    )


def _call(case: Case, held: int) -> tuple[SourceCall | None, bool]:
    """Return the call that sets an affinity to as many cores as were used, and whether it names
    them. A call that gives every core, or another number of them, is no cause."""
    unclear = None
    for call in user_calls(case, _SETTERS):
        number = _cores_given(call.text)
        if number == held:
            return call, True
        if number is None:
            unclear = unclear or call
    return unclear, False


def _cores_given(text: str) -> int | None:
    """Return the number of cores in {0}, [0, 1], cores[:2] or range(4); 0 for all of them, None if
    it is not known."""
    call = parsed_expression(text)
    if call is None:
        return None
    if not isinstance(call, ast.Call) or not call.args:
        return 0  # asks for it
    given = call.args[-1]
    if isinstance(given, ast.Set | ast.List | ast.Tuple):
        fixed = all(isinstance(one, ast.Constant) for one in given.elts)
        return len(given.elts) if fixed else None
    if isinstance(given, ast.Subscript) and isinstance(given.slice, ast.Slice):
        return _number(given.slice.upper) if given.slice.lower is None else None
    if "cpu_count" in text and not isinstance(given, ast.BinOp):
        return 0
    if isinstance(given, ast.Call) and len(given.args) == 1:
        return _number(given.args[0])
    return None


def _number(node: ast.expr | None) -> int | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int) else None


def _idle(case: Case, used: float) -> float:
    """Return the cores of the machine that nobody used; 0 if it is not known."""
    seen = case.telemetered
    if seen.other_cores is not None and seen.cores:
        return seen.cores - used - seen.other_cores
    use = host_use(case)
    return case.processors * (1 - use) if use is not None and case.processors else 0.0


def _bound(case: Case) -> str:
    """Return a variable that binds threads to cores. "close" and the like leave the cores to the
    system only if no places are given, so any of them counts."""
    variables = case.run.environment.variables if case.run is not None else {}
    named = (name for name in _BINDING if variables.get(name, "").lower() not in ("", "false"))
    return next((f"{name}={variables[name]}" for name in named), "")


def _who(threads: int, workers: int) -> str:
    parts = []
    if threads > 1 or not workers:
        parts.append(units.plural(threads, "thread"))
    else:
        parts.append("the program")
    if workers:
        parts.append(units.plural(workers, "worker"))
    return " and ".join(parts)


def _evidence(
    case: Case, used: float, idle: float, call: SourceCall | None, bound: str
) -> list[Evidence]:
    facts = [
        measured("cores the program used", f"{used:.2f}, workers and all", used),
        measured("cores idle", units.significant(idle, 2), idle),
    ]
    if call is not None:
        facts.append(read("the source says", call.text))
    if bound:
        facts.append(read("the environment says", bound))
    allowed = case.capture.flags.allowed_cores if case.capture is not None else 0
    if 0 < allowed < case.processors:
        text = f"{allowed} of {case.processors} cores"
        facts.append(measured("its thread may run on", text, allowed))
    if cores(case) < case.processors:
        text = f"{cores(case)} of {case.processors} cores, by what started it"
        facts.append(read("the program may use", text))
    return facts


def _change(call: SourceCall | None, bound: str) -> str:
    if call is not None:
        on = f"{call.on}." if call.on else ""
        every = "range(os.cpu_count())" if call.name == "sched_setaffinity" else ""
        inside = f"0, {every}" if every else "list(range(os.cpu_count()))"
        return f"# {call.text}\n{on}{call.name}({inside})   # or leave it out"
    if bound:
        return f"unset {bound.partition('=')[0]}"
    return "os.sched_setaffinity(0, range(os.cpu_count()))   # before workers start"
