"""A machine that is not all the program's: clocks, other programs, threads and cores."""

import ast
from collections.abc import Iterator
from statistics import fmean

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.machine_use import (
    MIN_FULL_SHARE,
    at_work,
    below_ceilings,
    cores,
    host_use,
    ranks_here,
    timed,
    used_cores,
)
from ridgeline.diagnosis.rule import Rule, gain_without, make_finding, measured, read
from ridgeline.diagnosis.rules._user_code import located_call, user_calls
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.run import DeviceSample
from ridgeline.source.calls import SourceCall
from ridgeline.source.file import parsed_expression

MIN_USE_PERCENT = 50
"""Use of a GPU from which it is at work. Below it, clocks may be low because there is little to do.
"""
MIN_HELD_SHARE = 0.3
"""Share of the looks at work with a reason. Less is a moment, not the state of the machine."""
MIN_THROTTLED_SHARE = 0.02
"""Share of the step. Boost clocks wander by a percent or two on their own."""
MIN_ARITHMETIC_SHARE = 0.3
"""Share of the step in arithmetic from which a power limit is to be expected."""
MIN_POWER_SHARE = 0.05
"""Share of the step that a power limit must cost. Dense products at full load draw more than any
data-centre GPU's limit allows at its highest clock."""

THROTTLED_CLOCKS = Rule(
    id="throttled-clocks", family="machine", budget="work", needs=("gpu", "telemetry")
)


def throttled_clocks(case: Case) -> Iterator[Finding]:
    """The GPU's clocks are held down while it works."""
    looks = _at_work(case)
    held = [look_ for look_ in looks if _reasons(look_)]
    if not looks or len(held) < MIN_HELD_SHARE * len(looks):
        return
    clocks = [(d.sm_mhz, d.sm_max_mhz) for d in looks if d.sm_mhz and d.sm_max_mhz]
    if not clocks:
        return
    lost = 1 - fmean(now / most for now, most in clocks)
    reasons = _named(held)
    capped = set(reasons) == {"power cap"}
    busy = case.busy if case.busy is not None else fmean(_use(d) for d in looks)
    share = max(lost, 0.0) * min(busy, 1.0)
    if share < MIN_THROTTLED_SHARE or (
        capped and (share < MIN_POWER_SHARE or _expected(case, looks))
    ):
        return
    now, most = fmean(c[0] for c in clocks), max(c[1] for c in clocks)
    yield make_finding(
        THROTTLED_CLOCKS,
        claim=f"the GPU runs at {now:.0f} of {most} MHz while it works: {' and '.join(reasons)}",
        share=share,
        confidence="low" if capped else "medium",
        evidence=_throttled_evidence(looks, held, now, most, lost),
        change=_throttled_change(reasons),
        doubt="a power limit at full load is how the card is meant to run" if capped
        else "kernels that wait for memory do not slow with this clock",
    )  # fmt: skip


def _at_work(case: Case) -> list[DeviceSample]:
    held = timed(case)
    if not held:
        return []
    ours = at_work(case.telemetry, held[0].at_ns, held[-1].at_ns, True)
    devices = [d for sample in held for d in sample.devices if d.index in ours]
    return [d for d in devices if _use(d) * 100 >= MIN_USE_PERCENT]


def _use(device: DeviceSample) -> float:
    return (device.utilisation_percent or 0) / 100


def _reasons(device: DeviceSample) -> list[str]:
    """Return the reasons without "idle": an idle device is not held down."""
    return [reason for reason in device.throttle if reason != "idle"]


def _named(held: list[DeviceSample]) -> list[str]:
    """Return the reasons, the most frequent first, without rare ones beside others."""
    names = [reason for device in held for reason in _reasons(device)]
    order = sorted(set(names), key=lambda name: (-names.count(name), name))
    return [name for name in order if names.count(name) >= MIN_HELD_SHARE * len(held)] or order[:1]


def _expected(case: Case, looks: list[DeviceSample]) -> bool:
    """Return whether a power limit is what such a load meets: a GPU full of work, arithmetic above
    all, or one that others heat as well."""
    full = (case.busy or 0.0) >= SATURATED or case.share_of("compute") >= MIN_ARITHMETIC_SHARE
    return full or any(device.others for device in looks)


def _throttled_evidence(
    looks: list[DeviceSample], held: list[DeviceSample], now: float, most: int, lost: float
) -> list[Evidence]:
    text = f"{now:.0f} MHz of {most}, {units.percent(lost)} below"
    number = f"in {len(held)} of {units.plural(len(looks), 'look')} at work"
    facts = [
        measured("clock while at work", text, now),
        measured("held down", number, len(held) / len(looks)),
    ]
    powers = [d.power_w for d in looks if d.power_w is not None]
    limits = [d.power_limit_w for d in looks if d.power_limit_w]
    if powers:
        limit = f" of {max(limits):.0f}" if limits else ""
        facts.append(measured("power", f"{fmean(powers):.0f}{limit} W"))
    heat = [d.temperature_c for d in looks if d.temperature_c is not None]
    if heat:
        facts.append(measured("temperature", f"up to {max(heat)} °C", max(heat)))
    return facts


def _throttled_change(reasons: list[str]) -> str:
    ask = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK"
    if any("clock" in reason for reason in reasons):
        return f"{ask}\nsudo nvidia-smi -rgc && sudo nvidia-smi -rac   # clocks that were locked"
    if "power cap" in reasons:
        return f"{ask}\nsudo nvidia-smi -pl <watts>   # up to the card's own limit"
    return f"{ask}   # heat or supply: mend the machine, not the program"


MIN_OTHER_USE = 0.15
"""The driver's use of the GPU above this program's own. Less is how the driver samples."""
FULL_GPU_SHARE = 0.9
MIN_SLOWED_SHARE = 0.15
"""Share of kernel time beyond what each kernel takes at best. Caches and clocks alone make up a
tenth."""
MIN_SHARED_LOOKS = 0.5
"""Share of the looks with another process. One that came and went is not what the steps are."""
MIN_KERNEL_CALLS = 6
SHARED_DEVICE = Rule(
    id="shared-device", family="machine", budget="work", needs=("telemetry", "gpu")
)


def shared_device(case: Case) -> Iterator[Finding]:
    """Another program works on the same GPU.

    On a CPU others come and go within a second: there the verdict says that they were there and
    that its times are in doubt, and no finding is made.
    """
    looks = [device for sample in timed(case) for device in sample.devices]
    others = [device.others for device in looks if device.others]
    if not looks or len(others) < MIN_SHARED_LOOKS * len(looks):
        return
    count, use = max(others), case.telemetered.gpu_utilisation or 0.0
    busy = case.busy
    known = busy is not None and busy < FULL_GPU_SHARE
    if busy is not None and known:
        # The rest of the driver's use is theirs, and while theirs run ours may not.
        share = use - busy
        how = f"in use {units.percent(use)}, {units.percent(busy)} of it by this program"
    else:
        share = _slowed(case)
        how = f"kernels take {units.percent(share / (1 - share))} longer than at their best"
    if share < (MIN_OTHER_USE if known else MIN_SLOWED_SHARE):
        return
    noun = "program works" if count == 1 else "programs work"
    yield make_finding(
        SHARED_DEVICE,
        claim=f"{count} other {noun} on the same GPU",
        share=min(share, count / (count + 1)),
        confidence="medium" if known else "low",
        evidence=[
            measured("other processes on the GPU", str(count), count),
            measured("the GPU", how, use),
        ],
        change="nvidia-smi   # who else is there\nCUDA_VISIBLE_DEVICES=<another> python …",
        doubt="the other process may only hold memory",
    )


def _slowed(case: Case) -> float:
    """Return the share of kernel time beyond what each kernel takes at its best. Kernels of one
    name and several sizes count too, hence the low confidence."""
    rows = [row for row in case.kernels if row.count >= MIN_KERNEL_CALLS]

    total = sum(row.total_ns for row in rows)
    best = sum(row.count * row.least_ns for row in rows)
    return 1 - best / total if total else 0.0


MIN_THREADS_PER_CORE = 1.5
"""One thread more than there are cores is what a worker or a copy thread is."""
MIN_OVERSUBSCRIBED_SHARE = 0.02
MAX_ATTAINED = 0.6
"""Share of the ceilings from which operators lose little to threads, however many there are. With a
thread for each core large products reach 0.74, the operators of an MLP of width 256 reach 0.43."""
MAX_ATTAINED_WITH_IDLE_CORES = 0.3
"""The same while cores stay idle: 24 threads on 2 cores that sleep while they wait for each other
reach 0.12, and leave a third of the cores' time unused."""
MIN_OWN_CORES = 1.2
"""Cores that the program itself uses, from which its operators do run on several threads. Small
operators run on one thread, whatever is set, and are below the ceilings for their size."""
_OVERSUBSCRIBED_SETTERS = ("set_num_threads", "threadpool_limits")

OVERSUBSCRIBED_CPU = Rule(
    id="oversubscribed-cpu", family="machine", budget="work", needs=("timed", "telemetry")
)


def oversubscribed_cpu(case: Case) -> Iterator[Finding]:
    """More threads than cores: they take turns, and wait for each other at the end of each
    operator."""
    allowed, ranks = cores(case), ranks_here(case)
    if case.on_gpu or not allowed:
        return
    # Telemetry is of this rank.
    own = used_cores(case) * ranks
    full = (host_use(case) or 0.0) >= MIN_FULL_SHARE or own >= MIN_FULL_SHARE * allowed
    threads = case.capture.flags.threads if case.capture is not None else 0
    crowd = threads > 1 and threads * ranks >= MIN_THREADS_PER_CORE * allowed
    if crowd and _held_up(case, full):
        yield from _operators(case, threads, ranks, allowed, full)


def _held_up(case: Case, full: bool) -> bool:
    """Return whether threads that wait for each other can be what takes the step's time."""
    attained = case.work.attained if case.work is not None else None
    if full:
        return attained is None or attained < MAX_ATTAINED
    several = (case.telemetered.program_cores or 0.0) > MIN_OWN_CORES
    return several and attained is not None and attained < MAX_ATTAINED_WITH_IDLE_CORES


def _operators(case: Case, threads: int, ranks: int, allowed: int, full: bool) -> Iterator[Finding]:
    lost = below_ceilings(case)
    # Without ceilings the gain is taken to be that of a core for each thread.
    share = lost if lost is not None else 1 - allowed / (threads * ranks)
    if share < MIN_OVERSUBSCRIBED_SHARE:
        return
    call = next(iter(user_calls(case, _OVERSUBSCRIBED_SETTERS)), None)
    each = max(allowed // ranks, 1)
    who = f"{ranks} ranks with {threads} threads each" if ranks > 1 else f"{threads} threads"
    number = f"{threads * ranks} for {units.plural(allowed, 'core')}"
    facts = [
        measured("threads", number, threads * ranks / allowed),
        measured("processors in use", units.percent(host_use(case) or 1.0), host_use(case)),
    ]
    if case.work is not None and case.work.attained is not None:
        reached = units.percent(case.work.attained)
        facts.append(measured("operators", f"at {reached} of their ceilings"))
    crowded = case.telemetered.crowded
    sure = full and not crowded and (ranks > 1 or call is not None)
    doubt = "other programs take cores too" if crowded else ""
    if not crowded and not full:
        doubt = "cores are idle part of the time: operators may be slow for their size"
    yield make_finding(
        OVERSUBSCRIBED_CPU,
        claim=f"{who} share {units.plural(allowed, 'core')} and wait for each other",
        share=share,
        bound=_oversubscribed_bound(case, share, ranks),
        confidence="high" if sure else "medium",
        place=located_call(case, call),
        evidence=facts,
        fix="threads",
        change=_oversubscribed_change(call, each, ranks),
        doubt=doubt,
    )


def _oversubscribed_bound(case: Case, share: float, ranks: int) -> float | None:
    """Return the bound. Tracing lengthens what is between operators, and so makes their part look
    smaller: of 24 threads on 2 cores they were 89 % of the traced step and 94 % of the untraced
    one, which became 4.9 × shorter. Ranks also wait for each other's tracing, and on a machine that
    others use lengths differ for that reason. There the share as traced gives the bound."""
    work = case.work
    if (
        ranks > 1
        or case.telemetered.crowded
        or work is None
        or work.attained is None
        or not case.step_ms
    ):
        return None
    untraced = min(work.operator_ms / case.step_ms, 1.0) * (1 - work.attained)
    return gain_without(max(share, untraced))


def _oversubscribed_change(call: SourceCall | None, each: int, ranks: int) -> str:
    shared = f"  # {ranks} ranks on this machine" if ranks > 1 else ""
    if call is not None and call.name == "set_num_threads":
        return f"{call.on + '.' if call.on else ''}set_num_threads({each}){shared}"
    return f"torch.set_num_threads({each}){shared}\n# or, from outside: OMP_NUM_THREADS={each}"


FULL_CORE_TOLERANCE = 0.12
"""How far from a whole number of cores the use of full ones may be. Two readings a look and the
rest of the machine take as much."""
MAX_FREE_SHARE = 0.3
"""Share of the cores that the system holds the program to, which may be free."""
MIN_IDLE_CORES = 0.4
"""Cores that stood idle. With fewer, there is nothing to move to."""
MIN_AFFINITY_SHARE = 0.05
_AFFINITY_SETTERS = ("sched_setaffinity", "cpu_affinity", "pthread_setaffinity_np")
_BINDING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")

AFFINITY = Rule(id="affinity", family="machine", budget="work", needs=("timed", "telemetry"))


def affinity(case: Case) -> Iterator[Finding]:
    """The program is held to fewer cores than it has work for, while others stand idle."""
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
    bound = _affinity_bound(case)
    starved = not allowed and seen.workers > held and case.share_of("input") > MIN_AFFINITY_SHARE
    started_so = held == cores(case) < case.processors  # by taskset, a scheduler, a container
    if not (measured_ or call or bound or starved or started_so):
        return  # one busy thread beside idle ones is how most programs run
    share = 1 - held / min(wanted, held + idle)
    if threads > held:  # threads on one core spin while they wait for each other: it costs more
        share = max(share, below_ceilings(case) or 0.0)
    if share < MIN_AFFINITY_SHARE:
        return
    known = call is not None or bool(bound) or measured_
    level: Confidence = "high" if named else "medium" if known else "low"
    yield make_finding(
        AFFINITY,
        claim=f"{_who(threads, seen.workers)} share {units.plural(held, 'core')} while "
        f"{units.significant(idle, 2)} stand idle",
        share=share,
        confidence=level,
        place=located_call(case, call),
        evidence=_affinity_evidence(case, used, idle, call, bound),
        fix="affinity",
        change=_affinity_change(call, bound),
        doubt="" if call is not None else "the work may be such that one core is enough for it",
    )


def _call(case: Case, held: int) -> tuple[SourceCall | None, bool]:
    """Return the call that sets an affinity to as many cores as were used, and whether it names
    them. A call that gives every core, or another number of them, is no cause."""
    unclear = None
    for call in user_calls(case, _AFFINITY_SETTERS):
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


def _affinity_bound(case: Case) -> str:
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


def _affinity_evidence(
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


def _affinity_change(call: SourceCall | None, bound: str) -> str:
    if call is not None:
        on = f"{call.on}." if call.on else ""
        every = "range(os.cpu_count())" if call.name == "sched_setaffinity" else ""
        inside = f"0, {every}" if every else "list(range(os.cpu_count()))"
        return f"# {call.text}\n{on}{call.name}({inside})   # or leave it out"
    if bound:
        return f"unset {bound.partition('=')[0]}"
    return "os.sched_setaffinity(0, range(os.cpu_count()))   # before workers start"
