"""What the rules about the machine share: the span of the timed steps, the cores a program may use
and how full they were, and calls in the program's own files."""

from statistics import fmean

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.machine_use import inside
from ridgeline.records.run import Telemetry

MIN_FULL_SHARE = 0.85
"""Share of the processors in use from which a thread that wants to run often has to wait."""


def timed(case: Case) -> list[Telemetry]:
    """Return the looks at the machine while light steps ran."""
    light = [step for step in case.steps if step.window == "light"]
    if not light:
        return []
    return inside(case.telemetry, light[0].start_ns, light[-1].start_ns + light[-1].dur_ns)


def host_use(case: Case) -> float | None:
    """Return the share of all processors of the machine in use, whoever used them."""
    seen = [s.host_cpu_percent for s in timed(case) if s.host_cpu_percent is not None]
    return fmean(seen) / 100 if seen else None


def cores(case: Case) -> int:
    """Return the cores that the program may use; 0 if it is not known."""
    return case.run.environment.cores if case.run is not None else 0


def ranks_here(case: Case) -> int:
    """Return the ranks on this machine: as torchrun says, else all of them, spread over the nodes
    of a cluster."""
    variables = case.run.environment.variables if case.run is not None else {}
    here, nodes = variables.get("LOCAL_WORLD_SIZE", ""), variables.get("SLURM_NNODES", "")
    if here.isdigit() and int(here):
        return int(here)
    return max(case.ranks // max(int(nodes) if nodes.isdigit() else 1, 1), 1)


def used_cores(case: Case) -> float:
    seen = case.telemetered
    return (seen.program_cores or 0.0) + (seen.worker_cores or 0.0)


def below_ceilings(case: Case) -> float | None:
    """Return the share of the step that operators on a CPU lose against the machine's ceilings: the
    most that threads could gain if each had a core. A rank that waits for another's operators waits
    for the same reason. Return None without ceilings."""
    work = case.work
    if work is None or work.attained is None:
        return None
    return min(work.op_share + work.communication_share, 1.0) * (1 - work.attained)
