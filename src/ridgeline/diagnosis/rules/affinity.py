"""The program is held to fewer cores than it has work for, while others stand idle."""

import ast
from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._machine import (
    below_ceilings,
    cores,
    host_use,
    own_calls,
    place_of_call,
    used_cores,
)
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.source.calls import SourceCall

NEAR = 0.12
"""Of a core: how near to a whole number the use of one that is full comes; reading it twice a look
and the rest of the machine take as much."""
FILLED = 0.3
"""Of the cores it is held to, known from the system: what may be left of them."""
IDLE = 0.4
"""Cores that stood idle: less, and there is nothing to move to."""
LEAST = 0.05
_SETTERS = ("sched_setaffinity", "cpu_affinity", "pthread_setaffinity_np")
_BINDING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")

RULE = Rule(id="affinity", family="machine", budget="work", needs=("timed", "telemetry"))


def look(case: Case) -> Iterator[Finding]:
    seen = case.telemetered
    used = used_cores(case)
    allowed = case.capture.flags.allowed_cores if case.capture is not None else 0
    measured = 0 < allowed < max(case.processors, cores(case))
    held = allowed if measured else max(round(used), 1)
    threads = case.capture.flags.threads if case.capture is not None and not case.on_gpu else 1
    wanted = max(threads, 1) + seen.workers
    idle = _idle(case, used)
    near = used >= (1 - FILLED) * held if measured else abs(used - held) <= NEAR * held
    if not near or wanted <= held or idle < IDLE:
        return
    call, named = _call(case, held)
    bound = _bound(case)
    starved = not allowed and seen.workers > held and case.share_of("input") > LEAST
    if not (measured or call or bound or starved or _held_outside(case, held)):
        return  # one busy thread beside idle ones is how most programs run
    share = 1 - held / min(wanted, held + idle)
    if threads > held:  # threads on one core spin while they wait for each other: it costs more
        share = max(share, below_ceilings(case) or 0.0)
    if share < LEAST:
        return
    told = call is not None or bool(bound)
    level: Confidence = "high" if named else "medium" if told or measured else "low"
    yield make_finding(
        RULE,
        claim=f"{_who(threads, seen.workers)} share {units.plural(held, 'core')} while "
        f"{units.significant(idle, 2)} stand idle",
        share=share,
        confidence=level,
        place=place_of_call(call),
        evidence=_evidence(case, used, idle, call, bound),
        change=_change(call, bound),
        doubt="" if call is not None else "the work may be such that one core is enough for it",
    )


def _call(case: Case, held: int) -> tuple[SourceCall | None, bool]:
    """The call that sets an affinity to as many cores as were used, and whether it names them; one
    that gives every core, or another number of them, is no cause."""
    unclear = None
    for call in own_calls(case, _SETTERS):
        number = _cores_given(call.text)
        if number == held:
            return call, True
        if number is None:
            unclear = unclear or call
    return unclear, False


def _cores_given(text: str) -> int | None:
    """{0}, [0, 1], cores[:2], range(4): how many; all of them is 0, None where it is not said."""
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
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
    """Cores of the machine nobody used; 0 where that is not known."""
    seen = case.telemetered
    if seen.other_cores is not None and seen.cores:
        return seen.cores - used - seen.other_cores
    use = host_use(case)
    return case.processors * (1 - use) if use is not None and case.processors else 0.0


def _held_outside(case: Case, held: int) -> bool:
    """By what started it: taskset, a scheduler, a container's quota."""
    return held == cores(case) < case.processors


def _bound(case: Case) -> str:
    """A variable that binds threads to cores; "close" and the like leave the cores to the system
    only where no places are given, so any of them counts."""
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
    said = [
        Evidence(what="cores the program used", text=f"{used:.2f}, workers and all", value=used),
        Evidence(what="cores idle", text=units.significant(idle, 2), value=idle),
    ]
    if call is not None:
        said.append(Evidence(what="the source says", text=call.text, source="read"))
    if bound:
        said.append(Evidence(what="the environment says", text=bound, source="read"))
    allowed = case.capture.flags.allowed_cores if case.capture is not None else 0
    if 0 < allowed < case.processors:
        text = f"{allowed} of {case.processors} cores"
        said.append(Evidence(what="its thread may run on", text=text, value=allowed))
    if cores(case) < case.processors:
        text = f"{cores(case)} of {case.processors} cores, by what started it"
        said.append(Evidence(what="the program may use", text=text, source="read"))
    return said


def _change(call: SourceCall | None, bound: str) -> str:
    if call is not None:
        on = f"{call.on}." if call.on else ""
        every = "range(os.cpu_count())" if call.name == "sched_setaffinity" else ""
        inside = f"0, {every}" if every else "list(range(os.cpu_count()))"
        return f"# {call.text}\n{on}{call.name}({inside})   # or leave it out"
    if bound:
        return f"unset {bound.partition('=')[0]}"
    return "os.sched_setaffinity(0, range(os.cpu_count()))   # before workers start"
