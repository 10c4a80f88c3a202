"""The program and its workers on the cores of one NUMA node: the GPU's own, or on a CPU any one
that is enough for its threads. Memory follows by itself: a page lies on the node of the core that
first writes to it."""

import os
from collections.abc import Mapping

from msgspec.structs import replace

from ridgeline.fixes.catalog.affinity import bind_threads, binding_variable
from ridgeline.fixes.fix import Fix, Source, speedup_without
from ridgeline.fixes.program import Program
from ridgeline.machine.processor import cores_in, cpulist
from ridgeline.records.edit import Edit, Import, Top
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground, NumaNode
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied

FIX = Fix(
    id="numa-binding",
    group="global",
    title="cores of one NUMA node, the GPU's own",
    # torch counts cores when it is imported, which is before: 2 threads stay 2 on one core, and
    # sums are divided as they were.
    alters="nothing",
    own_process=True,
    why="A machine with several sockets has memory beside each. A program that wanders between "
    "them launches kernels and copies batches across the link between the sockets.",
    wrong_when="The loader's workers need more cores than one node has, or another program is at "
    "work there.",
)
GPU, NODE = "/sys/bus/pci/devices/{}/local_cpulist", "/sys/devices/system/node/node{}/cpulist"
TEXT = """\
try:
    with open("{path}") as _file:
        _spans = [_span.split("-") for _span in _file.read().split(",")]
    _near = {{_core for _s in _spans for _core in range(int(_s[0]), int(_s[-1]) + 1)}}
    os.sched_setaffinity(0, _near & os.sched_getaffinity(0))
except (OSError, ValueError):
    pass  # another machine: no such place, or none of its cores may be used"""


def reason_to_skip(ground: Ground) -> Reason | None:
    if not ground.nodes:
        return because(Skip.NUMA_UNKNOWN)
    if len(ground.nodes) < 2:
        return because(Skip.ONE_NUMA_NODE)
    if ground.ranks > 1:
        return because(Skip.LAUNCHER_BINDS, ranks=ground.ranks)
    return _bound_already(ground) or _no_node(ground)


def bound(ground: Ground) -> float | None:
    """Return the bound on a GPU if copies go and the host's work while the device waits for it.
    Return None on a CPU, where it is not known how much of the work waits for another node's
    memory."""
    waits = ground.copy_share + ground.overhead_share + ground.input_share
    if ground.device != "cuda" or (not waits and not ground.busy):
        return None
    return speedup_without(waits)


def choices(ground: Ground) -> tuple[dict[str, str], ...]:
    node = _node(ground)
    if node is None:
        return ()
    where = {"gpu": ground.gpu_address} if ground.device == "cuda" else {"node": str(node.number)}
    return ({"cores": cpulist(node.cores), **where},)


def after(ground: Ground, options: Mapping[str, str]) -> Ground:
    cores = cores_in(options.get("cores", ""))
    if not cores:
        return ground
    return replace(
        ground, cores=min(len(cores), ground.cores),
        flags=replace(ground.flags, allowed_cores=len(cores)),
    )  # fmt: skip


def variables(environment: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Return none. The function is there because the binding, like a variable, is inherited from
    the start of a process: it cannot be tried in one that has its memory and its threads already.
    """
    return {}


def apply(program: Program, options: Mapping[str, str]) -> None:
    wanted = set(cores_in(options.get("cores", "")))
    if not hasattr(os, "sched_setaffinity"):
        program.found_nothing(FIX.id, because(Skip.NO_AFFINITIES))
        return
    if not (options.get("gpu") or options.get("node")):
        program.found_nothing(FIX.id, because(Skip.NUMA_UNKNOWN))
        return
    before = os.sched_getaffinity(0)
    near = wanted & before
    if not near:
        program.found_nothing(FIX.id, because(Skip.NODE_NOT_ALLOWED))
        return
    if near == before:
        program.found_nothing(FIX.id, because(Skip.BOUND_TO_NODE))
        return
    bind_threads(near, os.sched_setaffinity)

    def look() -> None:
        if os.sched_getaffinity(0) == near:
            program.did(FIX.id, _done(near, options))
        else:
            program.found_nothing(FIX.id, because(Skip.PROGRAM_SETS, setting="its affinity"))

    program.after_first_step(FIX.id, look)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """Name the GPU's address or the node's number, not the cores: then the lines do nothing on
    another machine, where a list of cores would hold the program to some of them. CUDA is not asked
    for the address: that would start it before the program has chosen its device."""
    done = applied.targets[0].done
    if done.code == Done.BOUND_TO_GPU_NODE:
        gpu = done.facts["gpu"]
        why = f"the cores beside this machine's GPU {gpu}; put in another's, where you use one"
        text = TEXT.format(path=GPU.format(gpu))
    else:
        why = "the cores beside one part of the memory, enough for its threads on this machine"
        text = TEXT.format(path=NODE.format(done.facts["node"]))
    top = Top(file="", where="after imports", text=text, why=why)
    return Import(file="", text="import os"), top


def _bound_already(ground: Ground) -> Reason | None:
    every = sum(len(node.cores) for node in ground.nodes)
    allowed = ground.flags.allowed_cores
    if sum(bool(node.cores) for node in ground.nodes) < 2:
        return because(Skip.BOUND_TO_NODE)
    if 0 < allowed < every:
        return because(Skip.BOUND_TO_CORES, allowed_cores=allowed, all_cores=every)
    variable = binding_variable(ground)
    if variable is None and "affinity" in ground.findings:
        return because(Skip.BOUND_TO_CORES, allowed_cores=ground.cores, all_cores=every)
    return variable


def _no_node(ground: Ground) -> Reason | None:
    """Return why there is no node to bind to; None if there is one."""
    if _node(ground) is not None:
        return None
    if ground.device == "cuda":
        return because(Skip.NO_CORE_NEAR_GPU if ground.gpu_node >= 0 else Skip.GPU_NODE_UNKNOWN)
    return because(
        Skip.NODE_TOO_SMALL, threads=ground.flags.threads, workers=_workers(ground),
        cores=_largest(ground).physical,
    )  # fmt: skip


def _node(ground: Ground) -> NumaNode | None:
    if ground.device == "cuda":
        there = [one for one in ground.nodes if one.number == ground.gpu_node and one.cores]
        return there[0] if there else None
    # Two threads on one core share its arithmetic: far apart they would have a core each. Workers
    # are content with what is left of one.
    node, threads = _largest(ground), max(ground.flags.threads, 1)
    fits = threads <= node.physical and threads + _workers(ground) <= len(node.cores)
    return node if fits else None


def _largest(ground: Ground) -> NumaNode:
    return max(ground.nodes, key=lambda one: (one.physical, -one.number))


def _workers(ground: Ground) -> int:
    return max((one.workers for one in ground.loaders), default=0)


def _done(cores: set[int], options: Mapping[str, str]) -> Reason:
    bound_to = cpulist(cores)
    if options.get("gpu"):
        return because(Done.BOUND_TO_GPU_NODE, cores=bound_to, gpu=options["gpu"])
    return because(Done.BOUND_TO_NODE, cores=bound_to, node=int(options["node"]))
