"""What calling operators costs, by where they are called from: for the rules of launch overhead.

A step is in three parts that both the trace and the untraced steps know: backward, optimizer, and
the rest. Within a part an operator costs its own time and, of the Python between operators, as much
as any other call. That share is put on the untraced length of the part, because tracing makes the
host slower as a whole.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import MAX_SHARE, Rule
from ridgeline.records.run import Phase
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Cause, Place
from ridgeline.report.names import function_label
from ridgeline.source.loops import loops_at

LEAST = 0.01
"""Of the step: what costs less is not said."""
WAITS: tuple[Cause, ...] = ("launch-bound", "other host", "unknown")
"""Causes of idling that fewer, or cheaper, calls would end. Between kernels that are queued already
the device waits for itself, or for another program that uses it."""
STALLED = 4
GAP_NS = 5_000.0
"""The most a device loses after a kernel with another queued; more is another program's."""
_LOOKUPS = ("aten::embedding", "aten::embedding_bag")
ACCUMULATE = "torch::autograd::AccumulateGrad"
_ENGINE = "autograd::engine::evaluate_function: "
_PARTS = ("backward", "optimizer", "rest")
_UNTRACED: dict[str, tuple[Phase, ...]] = {
    "backward": ("backward",),
    "optimizer": ("optimizer",),
    "rest": ("forward", "transfer", "evaluation", "other"),
}
HELD_BACK = 0.25
"""Of that waiting: idle right after the host waited for the device. So much, and the host could not
run ahead: without those waits (`.item()` 32 times a step) launches are hidden behind the work, as
the twins of those faults show."""
SLOWED = {True: 2.0, False: 1.15}
"""A traced step's length on the host against an untraced one's, with Python stacks and without:
with them 1.2 to 2.7 in 15 programs on an H200 whose device waits, 2.0 in the middle; without, a
guess. For traces alone, where no untraced step is known."""
SEVERAL = 8.0
"""Waits a step: a program that reads its loss, a metric and a norm has fewer, at the step's end."""
APART = 32.0
"""Kernels from one wait to the next: the host is at most so many ahead, 0.2 ms of small ones."""
WITHIN_REACH = 0.3
"""Of the untraced step the device works: where it is less, a host that need not wait cannot fill
it either, and launches are the cause after all."""


def held_back(case: Case) -> bool:
    """Whether waits for the device are why the host cannot launch ahead of it: by the idle time
    after them, or by their number. A slow host, as in a trace with stacks, has less to wait for:
    32 waits a step were followed by 9 to 15 % of that waiting, and 1.15 to 1.55 × was gained."""
    after = _after_waits(case)
    return after > HELD_BACK * waiting(case) or (after > 0 and _interrupted(case))


def waiting(case: Case) -> float:
    """Of the untraced step: the device waits for the host. In a trace alone it is estimated."""
    waits, busy = case.idle(*WAITS), case.busy
    if busy is None or busy >= 1:
        return waits
    return waits * (1 - _busy_untraced(case)) / (1 - busy)


def slowed(case: Case) -> float:
    """How much longer the host's part of the step is here than untraced; 1 where that is known."""
    return 1.0 if case.kind == "run" else SLOWED[case.sites.stacks]


def _busy_untraced(case: Case) -> float:
    return min(slowed(case) * (case.busy or 0.0), 1.0)


def _interrupted(case: Case) -> bool:
    """The host waits again and again, before it has launched much."""
    waits = sum(site.waits for site in case.sites.waits)
    if waits < SEVERAL or _busy_untraced(case) < WITHIN_REACH:
        return False
    return kernels(case.sites.ops) <= APART * waits


def bound_ahead(case: Case, share: float) -> float | None:
    """The bound of what ends such waits, `share` of the step: launches too are then hidden behind
    the work. 1.33 × was gained where the idle time right after 32 waits a step was 17 %, and all
    idle time 33 %. None: the waits are not why."""
    every = _after_waits(case)
    if not every or not held_back(case):
        return None
    gone = share + case.idle(*WAITS) * min(share / every, 1.0)
    copying = case.device_share(sum(site.exposed_ns for site in case.sites.copies))
    computing = max((case.busy or 0.0) - copying, 0.0)
    return 1 / (1 - min(gone, max(1 - computing, share), MAX_SHARE))


def _after_waits(case: Case) -> float:
    return case.device_share(sum(site.idle_ns for site in case.sites.waits))


def cost(case: Case, sites: Sequence[OpSite], *, kept: float = 0.0, stays_ns: float = 0.0) -> float:
    """Share of the step that would be gone without these calls. `kept`: bytes that whatever takes
    their place still has to move, at the rate of the device's memory. `stays_ns`: of their work
    (on a GPU the device's time, else the host's), what is to be done whoever asks for it."""
    host = host_cost(case, sites)
    if not case.on_gpu:
        return max(host - _moving(case, kept) - case.host_share(stays_ns), 0.0)
    worked = sum(site.device_ns for site in sites)
    goes = max(1 - stays_ns / worked, 0.0) if worked else 1.0
    # Calls cost the host their time, but the step no more than the device waits and works for them.
    waited = min(host, case.idle(*WAITS) + goes * case.device_share(worked))
    lost = max(waited, goes * case.exposed(*sites)) + _gaps(case, sites)
    return max(lost - _moving(case, kept), 0.0)


def _gaps(case: Case, sites: Sequence[OpSite]) -> float:
    """What the device loses between their kernels though they are queued."""
    mine, every = kernels(sites), kernels(case.sites.ops)
    part = mine / every if every else 0.0
    most = mine * GAP_NS / 1e6 / case.step_ms if case.step_ms else 0.0
    return min(case.idle("between kernels") * part, most)


def kernels(sites: Iterable[OpSite]) -> float:
    return sum(kernel.count for site in sites for kernel in site.kernels)


def host_cost(case: Case, sites: Sequence[OpSite]) -> float:
    """Time of the host in these calls and in the Python around them, as a share of the step."""
    return sum(_part_cost(case, sites, part) for part in _PARTS)


def _part_cost(case: Case, sites: Sequence[OpSite], part: str) -> float:
    mine = [site for site in sites if _part(site) == part]
    if not mine:
        return 0.0
    every = [site for site in case.sites.ops if _part(site) == part]
    working = sum(site.host_ns for site in every)
    length = max(_traced_ns(case, part), working)
    # what the sites left out of the list took lies in the gaps too: a little too much, never less
    gaps = (length - working) * min(calls(mine) / max(calls(every), 1.0), 1.0)
    steady = length - _stalls(every, mine)
    taken = (sum(site.host_ns for site in mine) + gaps) / steady if steady > 0 else 0.0
    return min(taken, 1.0) * _untraced(case, part, length)


def _stalls(every: Sequence[OpSite], mine: Sequence[OpSite]) -> float:
    """Time of the other calls beyond `STALLED` times what calls like them take: on a busy machine
    a thread loses the processor for 4 ms now and then, which three traced steps do not even out."""
    if len(every) == len(mine):
        return 0.0
    typical: dict[tuple[str, str], list[float]] = {}
    for site in every:
        if site.calls:
            typical.setdefault((site.op, str(site.dims)), []).append(site.host_ns / site.calls)
    chosen = {id(site) for site in mine}
    lost = 0.0
    for site in every:
        if site.calls and id(site) not in chosen:
            usual = median(typical[site.op, str(site.dims)])
            lost += max(site.host_ns - STALLED * usual * site.calls, 0.0)
    return lost


def calls(sites: Iterable[OpSite]) -> float:
    """Calls from Python, or from the autograd engine: those inside other operators left out."""
    return sum(site.calls for site in sites if not site.within)


def outer(site: OpSite) -> str:
    """The operator that was called: aten::linear of the aten::addmm inside it."""
    return site.within[0] if site.within else site.op


def parameters(case: Case) -> float:
    """How many gradients a step accumulates; 0 where the trace does not tell."""
    return sum(site.calls for site in case.sites.ops if site.op == _ENGINE + ACCUMULATE) or sum(
        site.calls for site in case.sites.ops if site.op == ACCUMULATE
    )


def parameter_dims(case: Case) -> frozenset[tuple[int, ...]]:
    """Sizes of the parameters, of those whose gradients are seen; empty without shapes."""
    return frozenset(
        tuple(site.dims[0]) for site in case.sites.ops if site.op == ACCUMULATE and site.dims
    )


def dims_of(site: OpSite) -> tuple[int, ...] | None:
    """Of its first argument, where that is a tensor and recorded; of a lookup, where the first one
    is the table, of the rows it takes."""
    first, index = _argument(site, 0), _argument(site, 1)
    if site.op in _LOOKUPS and first is not None and index is not None:
        return (*index, *first[1:])
    return first


def _argument(site: OpSite, at: int) -> tuple[int, ...] | None:
    sizes = site.dims[at] if len(site.dims) > at else None
    if not isinstance(sizes, list | tuple) or not all(isinstance(n, int) for n in sizes):
        return None
    return tuple(sizes)


def by_function(sites: Iterable[OpSite]) -> dict[tuple[str, str, int], list[OpSite]]:
    """Sites of each function of the user's; those of none are left out. Of a function already
    running when the trace began the line is one inside it, yet always the same one."""
    found: dict[tuple[str, str, int], list[OpSite]] = {}
    for site in sites:
        if site.place is not None:
            key = (site.place.file, site.place.function, site.place.line)
            found.setdefault(key, []).append(site)
    return found


def place_at(text: str, function: str = "") -> Place | None:
    """`train.py:12` as a place."""
    file, _, line = text.rpartition(":")
    return Place(file=file, line=int(line), function=function) if line.isdigit() else None


def as_traced(case: Case, place: Place) -> Place:
    """A place with its file as the trace names it, where that is the end of its path."""
    names = {site.place.file for site in case.sites.ops if site.place is not None}
    ends = [name for name in names if place.file.endswith(f"/{name.lstrip('./')}")]
    return replace(place, file=max(ends, key=len)) if ends else place


def _moving(case: Case, moved: float) -> float:
    rate = case.device.ceiling("copy") if case.device is not None else None
    length = case.step_ms / 1e3
    return moved / rate.value / length if moved and rate is not None and length else 0.0


def _part(site: OpSite) -> str:
    return site.phase if site.phase in ("backward", "optimizer") else "rest"


def _traced_ns(case: Case, part: str) -> float:
    """A traced step's host time in a part: by its share, for of several ranks the study has the
    sum, and the sites are one rank's."""
    if case.study is None:
        return 0.0
    names = (part,) if part != "rest" else ("forward", "other")
    share = sum(phase.share for phase in case.study.phases if phase.phase in names)
    return share * case.traced_ms * 1e6


def _untraced(case: Case, part: str, traced_ns: float) -> float:
    """The part's share of the untraced step on the host; of the traced one where that is all."""
    phases = _UNTRACED[part]
    if case.times.phases and case.times.clock == "host":
        return sum(p.share for p in case.times.phases if p.phase in phases)
    light = [s for s in case.steps if s.window == "light" and s.detailed and s.host]
    if light:
        held = sum(s.host.get(phase, 0) for s in light for phase in phases)
        named = sum(ns for s in light for ns in s.host.values())
        whole = sum(s.dur_ns for s in light)
        return (held + (max(whole - named, 0) if part == "rest" else 0)) / whole if whole else 0.0
    return case.host_share(traced_ns)


LEAST_LEFT = 0.2
"""Of the step: advice that changes how a program is run must clearly pay."""
MANY = 50
"""Launches a step: fewer take the host 0.3 ms or less."""
MOSTLY = 0.5
"""Of the kernels: so many must be small, or the device is not what is too fast."""
SMALL_NS = 10_000.0
"""A kernel this short ends before any host has launched the next one."""
SLOWEST_NS = 100_000.0
"""From one launch to the next: a ResNet-50 took four hosts of H200s 28 to 55 µs a kernel. A host
that takes longer than this does other things besides."""
PAUSE_NS = 1_000_000.0
"""The longest way to a launch: an optimizer's Python over 161 tensors takes 1.1 ms, traced. What
the device waits longer for is something else: a metric in NumPy, an operator on the processor."""
CHANGING = 0.02
"""Of the calls: so many with sizes that are not in every step, and sizes are not fixed."""


def left(case: Case) -> float:
    """Return the share of the step in which the device waits for launches that no more specific
    rule of this family claims."""
    # These rules import this module.
    from ridgeline.diagnosis.rules import (
        clip_by_tensor,
        metrics_by_tensor,
        python_loop,
        unfused_optimizer,
        zero_grad_fill,
    )

    specific = (unfused_optimizer, clip_by_tensor, metrics_by_tensor, python_loop, zero_grad_fill)
    claimed = sum(
        finding.share_pct / 100
        for module in specific
        if _can(case, module.RULE)
        for finding in module.look(case)
    )
    if case.telemetered.other_processes:
        return 0.0  # others use the device: its waiting is not this program's alone
    return 0.0 if held_back(case) else max(waiting(case) - claimed - pauses(case), 0.0)


def pauses(case: Case) -> float:
    """Of the step: the part of that waiting that lies in few long gaps."""
    idle = case.study.idle if case.study is not None else None
    shown = case.idle(*WAITS)
    if idle is None or not idle.total_ns or not shown:
        return 0.0
    long = sum(max(gap.dur_ns - PAUSE_NS, 0.0) for gap in idle.top if gap.cause in WAITS)
    return waiting(case) * min((1 - (case.busy or 0.0)) * long / idle.total_ns / shown, 1.0)


def bound_of(case: Case, share: float) -> float:
    """Of what ends such waiting. In a trace alone `share` is an estimate: the bound is by the
    waiting the trace shows. What looks like a pause may be launching after all. And no step is
    shorter than the device's work."""
    told, shown = waiting(case), case.idle(*WAITS)
    share = share + pauses(case)
    gone = min(share * shown / told if told else share, MAX_SHARE)
    return min(1 / (1 - gone), 1 / case.busy if case.busy else float("inf"))


def doubt_of(case: Case) -> str:
    """What makes the waiting of a trace alone doubtful."""
    if case.kind == "run":
        return ""
    if case.sites.stacks:
        return "recording Python stacks slows the host, often to half: untraced, the GPU waits less"
    return "recording slows the host a little: untraced, the device waits less"


def mostly_small(case: Case) -> bool:
    """Many kernels a step, and most of them over before the host has launched the next."""
    every = launches(case)
    return every >= MANY and kernels(small(case)) >= MOSTLY * every


def launches(case: Case) -> float:
    """Kernels a step, those of replayed graphs left out."""
    return kernels(case.sites.ops)


def small(case: Case) -> list[OpSite]:
    """Sites whose kernels are shorter than the way to the next launch."""
    pace, found = pace_ns(case), []
    for site in case.sites.ops:
        count = kernels([site])
        if count and site.device_ns / max(count, site.calls) < pace:
            found.append(site)
    return found


def pace_ns(case: Case) -> float:
    """A kernel shorter than this is small. No fixed length is: those of a ResNet-50, 26 µs in the
    mean and 23 % of them under 10, left an H200 waiting 37 % of the step for a host that needs
    40 µs."""
    pace = launch_ns(case)
    return max(pace, SMALL_NS) if pace <= SLOWEST_NS else SMALL_NS


def launch_ns(case: Case) -> float:
    """From one launch to the next, on the host and untraced: what the step takes beside waits for
    anything but launches; 0: not known."""
    many = launches(case)
    if case.busy is None or not many:
        return 0.0
    launching = case.busy + case.idle("launch-bound")
    return launching * case.step_ms * 1e6 / slowed(case) / many


def fixed_sizes(case: Case) -> bool | None:
    """Whether every step calls the same operators with the same sizes; None: not told."""
    steps = case.sites.steps
    if not case.sites.shapes or steps < 2:
        return None
    counts: dict[tuple[str, ...], float] = defaultdict(float)
    for site in case.sites.ops:
        if site.phase in ("forward", "backward", "optimizer"):
            where = f"{site.place.file}:{site.place.line}" if site.place is not None else ""
            key = (site.op, *site.within, str(site.dims), site.module, where, site.phase)
            counts[key] += site.calls
    whole = sum(counts.values())
    changing = sum(n for n in counts.values() if abs(n - round(n)) > 0.1 / steps)
    return changing <= CHANGING * whole if whole else None


def _can(case: Case, rule: Rule) -> bool:
    return all(case.has(need) for need in rule.needs)


TURNS = 16
"""Calls of one operator from one function: fewer are a model's depth, or written out by hand."""
OF_PARAMETERS = 0.5
"""Of the number of parameters: from so many turns on a loop may be one over them (a mean over
weights leaves out biases)."""
FITTING = 0.6
"""Of a loop's calls: with a parameter's sizes."""
Over = Literal["gradients", "state", "data"]
_OF_STATE = ("parameters", "state_dict", "buffers", "params")
"""Words in the iterable of a loop that goes over a model's own tensors."""

VIEWS = frozenset(f"aten::{name}" for name in (
    "view", "t", "transpose", "select", "slice", "detach", "unbind", "expand", "reshape", "permute",
    "as_strided", "squeeze", "unsqueeze", "alias", "item", "is_nonzero", "_local_scalar_dense",
    "empty", "split", "chunk", "narrow", "detach_", "result_type", "empty_like", "view_as", "zero_",
))  # fmt: skip
_NORMS = frozenset(f"aten::{name}" for name in (
    "norm", "linalg_vector_norm", "square", "pow", "sum", "abs", "max", "amax", "clamp", "clamp_",
    "clip", "clip_", "isnan", "isinf", "isfinite", "any", "all",
))  # fmt: skip


class Loop(Struct, frozen=True, kw_only=True):
    place: Place
    over: Over
    """Gradients, tensors kept beside the model (an average of weights, metrics), or data."""
    turns: float
    """How often its body runs a step."""
    calls: float
    """Of all operators it calls, the backward's left out."""
    ops: tuple[str, ...]
    """The most frequent first."""
    sites: tuple[OpSite, ...]
    """With what they call, and what the backward does for them."""

    @property
    def name(self) -> str:
        return function_label(self.place.function, self.place.file)


def loops(case: Case) -> tuple[Loop, ...]:
    """Those with the most calls first."""
    watched = [s for s in case.sites.ops if s.phase not in ("optimizer", "input")]
    found = [loop for group in by_function(watched).values() for loop in _loops_of(case, group)]
    told = [replace(loop, over="data") if _gathers_rows(case, loop) else loop for loop in found]
    return tuple(sorted(told, key=lambda loop: -loop.calls))


def _gathers_rows(case: Case, loop: Loop) -> bool:
    """Return whether a loop collects a result for each row of a tensor and updates nothing. By the
    sizes of its tensors, such a loop looks like one over parameters; the source tells."""
    if loop.over != "state":
        return False
    written = [one for one in loops_at(case.sources, loop.place) if one.works and not one.trains]
    return bool(written) and all(
        one.collects
        and not any(name.endswith("_") for name in one.calls)
        and not any(word in one.over for word in _OF_STATE)
        for one in written
    )


def _loops_of(case: Case, group: list[OpSite]) -> Iterator[Loop]:
    turns: dict[tuple[str, str], float] = defaultdict(float)
    for site in group:
        if site.phase != "backward" and not site.within and site.op.startswith("aten::"):
            turns[site.op, site.module] += site.calls
    many = {key: n for key, n in turns.items() if n >= TURNS}
    if not any(op not in VIEWS for op, _ in many):
        return
    ahead = [s for s in group if s.phase != "backward" and (outer(s), s.module) in many]
    modules = {module for _, module in many}
    back = [s for s in group if s.phase == "backward" and s.module in modules and _often(s)]
    for over, chosen in _sorted(case, ahead, back):
        seen = {op: sum(n for (o, _), n in many.items() if o == op)
                for op in {outer(s) for s in chosen} - VIEWS}  # fmt: skip
        place = next((s.place for s in chosen if s.place is not None), None)
        if not seen or place is None:
            continue
        own = [s for s in chosen if s.phase != "backward"]
        yield Loop(
            place=place,
            over=over,
            turns=_turns(seen.values()),
            calls=sum(s.calls for s in own if not s.within and s.op not in VIEWS),
            ops=tuple(sorted(seen, key=lambda op: (-seen[op], op))),
            sites=(*own, *(back if over == "data" else ())),
        )


def _turns(counts: Iterable[float]) -> float:
    """Calls of the operator that each turn calls once: of those called often, the least."""
    told = list(counts)
    return min(n for n in told if n >= FITTING / 2 * max(told))


def _often(site: OpSite) -> bool:
    return site.calls >= TURNS / 2 and ACCUMULATE not in site.op and not site.inside(ACCUMULATE)


def _sorted(
    case: Case, ahead: list[OpSite], back: list[OpSite]
) -> Iterator[tuple[Over, list[OpSite]]]:
    """The loop as one over data, or what of it goes over parameters without their gradients."""
    own = [s for s in ahead if not s.within and s.op not in VIEWS]
    outside = [s for s in own if not s.module]  # a model's own forward does not go over parameters
    sizes = parameter_dims(case)
    sized = [s for s in outside if dims_of(s) in sizes] if case.sites.shapes else outside
    number, all_calls = parameters(case), _calls(own)
    enough = max(TURNS, OF_PARAMETERS * number)
    most = max((_of(sized, op) for op in {s.op for s in sized}), default=0.0)
    if back or _calls(sized) < FITTING * _calls(_of_tensors(own)) or most < enough:
        inplace = _calls(s for s in outside if s.op.endswith("_"))
        yield ("state" if not back and inplace >= FITTING * all_calls else "data"), ahead
        return
    norms = {s.op for s in sized if s.op in _NORMS and _of(sized, s.op) >= OF_PARAMETERS * number}
    if not norms:
        yield "state", ahead
        return
    updates = {op for op in ("aten::lerp_", "aten::copy_", "aten::add_", "aten::lerp", "aten::add")
               if _of(sized, op) >= OF_PARAMETERS * number}  # fmt: skip
    yield "gradients", [s for s in ahead if outer(s) not in updates]
    if updates:
        yield "state", [s for s in ahead if outer(s) in updates]


def _of_tensors(sites: list[OpSite]) -> list[OpSite]:
    """Without those on numbers: a sum of norms is added up in a tensor of no dimension."""
    return [site for site in sites if dims_of(site) != ()]


def _of(sites: list[OpSite], op: str) -> float:
    return _calls(site for site in sites if site.op == op)


def _calls(sites: Iterable[OpSite]) -> float:
    return sum(site.calls for site in sites)
