"""The program and its workers on the cores of one NUMA node: the GPU's own, or on a CPU any one
that is enough for its threads. Memory follows by itself: a page lies on the node of the core that
first writes to it."""

import os
import re
from collections.abc import Mapping

from msgspec.structs import replace

from ridgeline.fixes.bounds import speedup_without
from ridgeline.fixes.catalog.affinity import BINDING
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.program import Program
from ridgeline.machine.processor import cores_in, cpulist
from ridgeline.records.edit import Edit, Import, Top
from ridgeline.records.ground import Ground, NumaNode
from ridgeline.records.trial import Applied
from ridgeline.units import plural

FIX = Fix(
    id="numa-binding",
    group="global",
    title="cores of one NUMA node, the GPU's own",
    # torch counts cores when it is imported, which is before: 2 threads stay 2 on one core, and
    # sums are divided as they were.
    alters="nothing",
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
BOUND = "the program is bound already"


def reason_to_skip(ground: Ground) -> str:
    if not ground.nodes:
        return "the system does not say which cores lie beside which memory"
    if len(ground.nodes) < 2:
        return "the machine has one NUMA node: all its cores are as near"
    if ground.ranks > 1:
        return (
            f"its {ground.ranks} processes need a node each, which is the launcher's to give: "
            "newer ones have torchrun --numa-binding=node"
        )
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
    """None; but like a variable it is inherited from the start of a process, and cannot be tried in
    one that has its memory and its threads already."""
    return {}


def apply(program: Program, options: Mapping[str, str]) -> None:
    wanted = set(cores_in(options.get("cores", "")))
    if not hasattr(os, "sched_setaffinity"):
        program.found_nothing(FIX.id, "this system has no affinities")
        return
    before = os.sched_getaffinity(0)
    near = wanted & before
    if not near:
        program.found_nothing(FIX.id, "no core of that node may be used")
        return
    if near == before:
        program.found_nothing(FIX.id, f"{BOUND}: to no other cores")
        return
    _bind(near)

    def look() -> None:
        if os.sched_getaffinity(0) == near:
            program.did(FIX.id, _what(near, options))
        else:
            program.found_nothing(FIX.id, "the program sets its affinity itself")

    program.after_first_step(FIX.id, look)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """By the GPU's address or the node's number, and not by the cores: these lines do nothing on a
    machine without it, where a list of cores would hold the program to some of them. CUDA is not
    asked for the address: that would start it before the program has chosen its device."""
    gpu = re.search(r"GPU (\S+)$", applied.what)
    node = re.search(r"NUMA node (\d+)$", applied.what)
    if gpu:
        why = f"the cores beside this machine's GPU {gpu[1]}; put in another's, where you use one"
        text = TEXT.format(path=GPU.format(gpu[1]))
    elif node:
        why = "the cores beside one part of the memory, enough for its threads on this machine"
        text = TEXT.format(path=NODE.format(node[1]))
    else:
        raise EditByHand(f"{applied.what}: write os.sched_setaffinity(0, …) with those cores")
    top = Top(file="", where="after imports", text=text, why=why)
    return Import(file="", text="import os"), top


def _bound_already(ground: Ground) -> str:
    every = sum(len(node.cores) for node in ground.nodes)
    if sum(bool(node.cores) for node in ground.nodes) < 2:
        return f"{BOUND}, to the cores of one NUMA node"
    if 0 < ground.flags.allowed_cores < every:
        return f"{BOUND}, to {ground.flags.allowed_cores} of {every} cores"
    named = next((name for name in BINDING if ground.variables.get(name)), "")
    if named:
        return f"{BOUND}: {named} is set around it"
    return f"{BOUND}, to too few cores" if "affinity" in ground.findings else ""


def _no_node(ground: Ground) -> str:
    """Why there is none to bind to."""
    if _node(ground) is not None:
        return ""
    if ground.device == "cuda":
        known = ground.gpu_node >= 0
        said = "the system does not say which NUMA node the GPU hangs on"
        return "no core beside the GPU may be used" if known else said
    node, workers = _largest(ground), _workers(ground)
    who = plural(ground.flags.threads, "thread")
    who += f" and {plural(workers, 'worker')}" if workers else ""
    return f"its {who} need more than the {plural(node.physical, 'core')} of a NUMA node"


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


def _what(cores: set[int], options: Mapping[str, str]) -> str:
    if options.get("gpu"):
        return f"cores {cpulist(cores)}, beside GPU {options['gpu']}"
    return f"cores {cpulist(cores)}, of NUMA node {options.get('node', '?')}"


def _bind(cores: set[int]) -> None:
    """Every thread there is: those a library started when it was imported do not inherit."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except OSError:
            continue  # it has ended
