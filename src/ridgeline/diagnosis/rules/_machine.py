"""What the rules about the machine share: the span of the timed steps, the cores a program may use
and how full they were, and calls in the program's own files."""

from collections.abc import Collection, Iterator
from statistics import fmean

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.machine_use import inside
from ridgeline.records.run import Telemetry
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall, all_calls

FULL = 0.85
"""Of the processors in use from which a thread that wants to run often has to wait."""


def timed(case: Case) -> list[Telemetry]:
    """Looks at the machine while light steps ran."""
    light = [step for step in case.steps if step.window == "light"]
    if not light:
        return []
    return inside(case.telemetry, light[0].start_ns, light[-1].start_ns + light[-1].dur_ns)


def host_use(case: Case) -> float | None:
    """Of all processors of the machine, whoever used them."""
    seen = [s.host_cpu_percent for s in timed(case) if s.host_cpu_percent is not None]
    return fmean(seen) / 100 if seen else None


def cores(case: Case) -> int:
    """That the program may use; 0: not known."""
    return case.run.environment.cores if case.run is not None else 0


def ranks_here(case: Case) -> int:
    """Ranks on this machine: torchrun says so, else all of them, over the nodes of a cluster."""
    variables = case.run.environment.variables if case.run is not None else {}
    told, nodes = variables.get("LOCAL_WORLD_SIZE", ""), variables.get("SLURM_NNODES", "")
    if told.isdigit() and int(told):
        return int(told)
    return max(case.ranks // max(int(nodes) if nodes.isdigit() else 1, 1), 1)


def used_cores(case: Case) -> float:
    seen = case.telemetered
    return (seen.program_cores or 0.0) + (seen.worker_cores or 0.0)


def below_ceilings(case: Case) -> float | None:
    """Share of the step that operators on a CPU lose against the machine's ceilings: the most that
    threads which each have a core could gain. A rank that waits for another's operators waits for
    the same reason. None: no ceilings."""
    work = case.work
    if work is None or work.attained is None:
        return None
    return min(work.op_share + work.communication_share, 1.0) * (1 - work.attained)


def own_files(case: Case) -> tuple[str, ...]:
    """Files of the user's that are known: the script's and those of measured places."""
    found: list[str] = []
    if case.run is not None and case.run.target.kind == "script":
        found.append(case.run.target.name)
    if case.capture is not None:
        places = [one.place for one in case.capture.modules]
        places += [one.place for one in case.capture.optimizers]
        places += [one.place for one in case.capture.loaders]
        found += [place.rpartition(":")[0] for place in places]
    found += [site.place.file for site in case.sites.ops if site.place is not None]
    return tuple(dict.fromkeys(name for name in found if name))


def own_calls(case: Case, names: Collection[str]) -> Iterator[SourceCall]:
    """Calls of these names anywhere in the user's files."""
    seen: set[tuple[str, int]] = set()
    for file in own_files(case):
        source = case.sources.get(file)
        for call in all_calls(source, names) if source is not None else ():
            if (source.text[:200] if source else "", call.line) not in seen:
                seen.add((source.text[:200] if source else "", call.line))
                yield call


def place_of_call(call: SourceCall | None) -> Place | None:
    return Place(file=call.file, line=call.line) if call is not None else None
