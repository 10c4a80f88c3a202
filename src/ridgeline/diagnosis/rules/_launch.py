"""Works out what calling operators costs the host, whether the device waits for launches, and which
Python loops call the same operators again and again.

A step has three parts that both the trace and the untraced steps know: backward, optimizer, and the
rest. Within a part an operator costs its own time and a share of the Python between operators, the
same for every call. This cost is converted to the untraced length of the part, because tracing
slows the host as a whole.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, gain_without
from ridgeline.diagnosis.rules._operators import sizes_of
from ridgeline.records.run import Phase
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Cause, Place
from ridgeline.report.plain import function_label
from ridgeline.source.loops import loops_at

MIN_SHARE = 0.01
"""Share of the step from which a cost is reported."""
LAUNCH_WAITS: tuple[Cause, ...] = ("launch-bound", "other host", "unknown")
"""Causes of idling that fewer, or cheaper, calls would end. Between kernels that are queued already
the device waits for itself, or for another program that uses it."""
STALL_FACTOR = 4
"""A call that takes this many times the median of calls like it holds a stall of the machine."""
MAX_KERNEL_GAP_NS = 5_000.0
"""The most that a device loses after a kernel with another queued. More is another program's."""
_LOOKUPS = ("aten::embedding", "aten::embedding_bag")
ACCUMULATE = "torch::autograd::AccumulateGrad"
_ENGINE = "autograd::engine::evaluate_function: "
_PARTS = ("backward", "optimizer", "rest")
_UNTRACED: dict[str, tuple[Phase, ...]] = {
    "backward": ("backward",),
    "optimizer": ("optimizer",),
    "rest": ("forward", "transfer", "evaluation", "other"),
}
MIN_AFTER_WAITS_SHARE = 0.25
"""Share of the waiting for launches that lies right after the host waited for the device, from
which the host is taken to be held back. Without those waits (`.item()` 32 times a step) launches
are hidden behind the work, as the twins of those faults show."""
TRACED_SLOWDOWN = {True: 2.0, False: 1.15}
"""Host time of a traced step, with Python stacks and without, as a multiple of that of an untraced
one, for traces alone. With stacks it was 1.2 to 2.7, in the median 2.0, in 15 programs on an H200
whose device waits. Without stacks the number is a guess."""
MANY_WAITS = 8.0
"""Waits a step. A program that reads its loss, a metric and a norm at the step's end has fewer."""
MAX_KERNELS_PER_WAIT = 32.0
"""A host that waits again after so few kernels is never far ahead: 0.2 ms of small ones."""
MIN_BUSY_UNTRACED = 0.3
"""Share of the untraced step that the device must work before waits count as the cause. Where it is
less, a host that need not wait cannot fill the step either, and launches are the cause after all.
"""


def held_back(case: Case) -> bool:
    """Return whether waits for the device are why the host cannot launch ahead of it: by the idle
    time after them, or by their number. A slow host, as in a trace with stacks, has less to wait
    for: 32 waits a step were followed by 9 to 15 % of that waiting, and 1.15 to 1.55 × was gained.
    """
    after = _after_waits(case)
    return after > MIN_AFTER_WAITS_SHARE * waiting(case) or (after > 0 and _interrupted(case))


def waiting(case: Case) -> float:
    """Return the share of the untraced step in which the device waits for the host. For a trace
    alone it is estimated."""
    waits, busy = case.idle(*LAUNCH_WAITS), case.busy
    if busy is None or busy >= 1:
        return waits
    return waits * (1 - _busy_untraced(case)) / (1 - busy)


def slowed(case: Case) -> float:
    """Return how many times as long the host's part of the step takes as untraced; 1 if that is
    known."""
    return 1.0 if case.kind == "run" else TRACED_SLOWDOWN[case.sites.stacks]


def _busy_untraced(case: Case) -> float:
    return min(slowed(case) * (case.busy or 0.0), 1.0)


def _interrupted(case: Case) -> bool:
    """Return whether the host waits again and again before it has launched much."""
    waits = sum(site.waits for site in case.sites.waits)
    if waits < MANY_WAITS or _busy_untraced(case) < MIN_BUSY_UNTRACED:
        return False
    return kernels(case.sites.ops) <= MAX_KERNELS_PER_WAIT * waits


def bound_ahead(case: Case, share: float) -> float | None:
    """Return the bound of what ends waits for the device that take `share` of the step: launches
    too are then hidden behind the work. 1.33 × was gained where the idle time right after 32 waits
    a step was 17 % and all idle time 33 %. Return None if such waits do not hold the host back."""
    every = _after_waits(case)
    if not every or not held_back(case):
        return None
    gone = share + case.idle(*LAUNCH_WAITS) * min(share / every, 1.0)
    copying = case.device_share(sum(site.exposed_ns for site in case.sites.copies))
    computing = max((case.busy or 0.0) - copying, 0.0)
    return gain_without(min(gone, max(1 - computing, share)))


def _after_waits(case: Case) -> float:
    return case.device_share(sum(site.idle_ns for site in case.sites.waits))


def cost(case: Case, sites: Sequence[OpSite], *, kept: float = 0.0, stays_ns: float = 0.0) -> float:
    """Return the share of the step that would be gone without these calls.

    kept: bytes that whatever takes their place still has to move, at the rate of the memory.
    stays_ns: the part of their work (device time on a GPU, host time on a CPU) that has to be done
        whoever asks for it."""
    host = host_cost(case, sites)
    if not case.on_gpu:
        return max(host - _moving(case, kept) - case.host_share(stays_ns), 0.0)
    worked = sum(site.device_ns for site in sites)
    goes = max(1 - stays_ns / worked, 0.0) if worked else 1.0
    # Calls cost the host their time, but the step no more than the device waits and works for them.
    waited = min(host, case.idle(*LAUNCH_WAITS) + goes * case.device_share(worked))
    lost = max(waited, goes * case.exposed(*sites)) + _gaps(case, sites)
    return max(lost - _moving(case, kept), 0.0)


def _gaps(case: Case, sites: Sequence[OpSite]) -> float:
    """Return what the device loses between their kernels though they are queued."""
    mine, every = kernels(sites), kernels(case.sites.ops)
    part = mine / every if every else 0.0
    most = mine * MAX_KERNEL_GAP_NS / 1e6 / case.step_ms if case.step_ms else 0.0
    return min(case.idle("between kernels") * part, most)


def kernels(sites: Iterable[OpSite]) -> float:
    return sum(kernel.count for site in sites for kernel in site.kernels)


def host_cost(case: Case, sites: Sequence[OpSite]) -> float:
    """Return the share of the step that the host spends in these calls and the Python around."""
    return sum(_part_cost(case, sites, part) for part in _PARTS)


def _part_cost(case: Case, sites: Sequence[OpSite], part: str) -> float:
    mine = [site for site in sites if _part(site) == part]
    if not mine:
        return 0.0
    every = [site for site in case.sites.ops if _part(site) == part]
    working = sum(site.host_ns for site in every)
    length = max(_traced_ns(case, part), working)
    # Time of sites that are not in the list lies in the gaps too: a little too much, never less.
    gaps = (length - working) * min(calls(mine) / max(calls(every), 1.0), 1.0)
    steady = length - _stalls(every, mine)
    taken = (sum(site.host_ns for site in mine) + gaps) / steady if steady > 0 else 0.0
    return min(taken, 1.0) * _untraced(case, part, length)


def _stalls(every: Sequence[OpSite], mine: Sequence[OpSite]) -> float:
    """Return the time of the other calls beyond `STALL_FACTOR` times what calls like them take. On
    a busy machine a thread loses the processor for 4 ms now and then, which three traced steps do
    not even out."""
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
            lost += max(site.host_ns - STALL_FACTOR * usual * site.calls, 0.0)
    return lost


def calls(sites: Iterable[OpSite]) -> float:
    """Return the number of calls from Python or the autograd engine, without those inside other
    operators."""
    return sum(site.calls for site in sites if not site.within)


def outer(site: OpSite) -> str:
    """Return the operator that was called: aten::linear for the aten::addmm inside it."""
    return site.within[0] if site.within else site.op


def parameters(case: Case) -> float:
    """Return how many gradients a step accumulates; 0 if the trace does not tell."""
    return sum(site.calls for site in case.sites.ops if site.op == _ENGINE + ACCUMULATE) or sum(
        site.calls for site in case.sites.ops if site.op == ACCUMULATE
    )


def parameter_dims(case: Case) -> frozenset[tuple[int, ...]]:
    """Return the sizes of the parameters whose gradients were seen; empty without shapes."""
    return frozenset(
        tuple(site.dims[0]) for site in case.sites.ops if site.op == ACCUMULATE and site.dims
    )


def dims_of(site: OpSite) -> tuple[int, ...] | None:
    """Return the sizes of an operator's first argument, or None if it is no tensor or was not
    recorded. For a lookup, whose first argument is the table, return the sizes of its result."""
    first, index = _recorded(site, 0), _recorded(site, 1)
    if site.op in _LOOKUPS and first is not None and index is not None:
        return (*index, *first[1:])
    return first


def _recorded(site: OpSite, at: int) -> tuple[int, ...] | None:
    sizes = site.dims[at] if len(site.dims) > at else None
    return sizes_of(site, at) or (() if sizes in ([], ()) else None)


def by_function(sites: Iterable[OpSite]) -> dict[tuple[str, str, int], list[OpSite]]:
    """Return the sites of each of the user's functions. For a function that was running when the
    trace began, the line is one inside the function, yet always the same one."""
    found: dict[tuple[str, str, int], list[OpSite]] = {}
    for site in sites:
        if site.place is not None:
            key = (site.place.file, site.place.function, site.place.line)
            found.setdefault(key, []).append(site)
    return found


def _moving(case: Case, moved: float) -> float:
    rate = case.device.ceiling("copy") if case.device is not None else None
    length = case.step_ms / 1e3
    return moved / rate.value / length if moved and rate is not None and length else 0.0


def _part(site: OpSite) -> str:
    return site.phase if site.phase in ("backward", "optimizer") else "rest"


def _traced_ns(case: Case, part: str) -> float:
    """Return a traced step's host time in a part. It is computed from the part's share, because the
    study of several ranks has their sum, and the sites are one rank's."""
    if case.study is None:
        return 0.0
    names = (part,) if part != "rest" else ("forward", "other")
    share = sum(phase.share for phase in case.study.phases if phase.phase in names)
    return share * case.traced_ms * 1e6


def _untraced(case: Case, part: str, traced_ns: float) -> float:
    """Return a part's share of the untraced step on the host, or of the traced step if no untraced
    one is known."""
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


MIN_LAUNCH_SHARE = 0.2
"""Share of the step that advice must save if it changes how a program is run."""
MIN_LAUNCHES = 50
"""Launches a step. Fewer take the host 0.3 ms or less."""
MIN_SMALL_KERNEL_SHARE = 0.5
"""Share of the kernels that must be small for launching to be the limit."""
SMALL_KERNEL_NS = 10_000.0
"""A kernel this short ends before any host has launched the next one."""
MAX_LAUNCH_NS = 100_000.0
"""From one launch to the next. A ResNet-50 took four hosts of H200s 28 to 55 µs a kernel; a host
that takes longer than this limit does other things besides."""
MAX_LAUNCH_WAIT_NS = 1_000_000.0
"""The longest wait that counts as a wait for a launch: an optimizer's Python over 161 tensors takes
1.1 ms, traced. In a longer one the device waits for something else: a metric in NumPy, an operator
on the processor."""
MAX_CHANGING_SHARE = 0.02
"""Share of the calls whose sizes are not in every step. With more, sizes are not fixed."""


def left(case: Case) -> float:
    """Return the share of the step in which the device waits for launches that no more specific
    rule of this family claims."""
    from ridgeline.diagnosis.rules import optimizers, python_loops  # they import this module

    specific = (
        (optimizers.UNFUSED_OPTIMIZER, optimizers.unfused_optimizer),
        (optimizers.ZERO_GRAD_FILL, optimizers.zero_grad_fill),
        (python_loops.CLIP_BY_TENSOR, python_loops.clip_by_tensor),
        (python_loops.METRICS_BY_TENSOR, python_loops.metrics_by_tensor),
        (python_loops.PYTHON_LOOP, python_loops.python_loop),
    )
    claimed = sum(
        finding.share_pct / 100
        for rule, look in specific
        if can_look(case, rule)
        for finding in look(case)
    )
    if case.telemetered.other_processes:
        return 0.0  # others use the device: its waiting is not this program's alone
    return 0.0 if held_back(case) else max(waiting(case) - claimed - pauses(case), 0.0)


def pauses(case: Case) -> float:
    """Return the share of the step that the device waits in few long gaps for the host."""
    idle = case.study.idle if case.study is not None else None
    shown = case.idle(*LAUNCH_WAITS)
    if idle is None or not idle.total_ns or not shown:
        return 0.0
    gaps = (gap.dur_ns for gap in idle.top if gap.cause in LAUNCH_WAITS)
    long = sum(max(ns - MAX_LAUNCH_WAIT_NS, 0.0) for ns in gaps)
    return waiting(case) * min((1 - (case.busy or 0.0)) * long / idle.total_ns / shown, 1.0)


def bound_of(case: Case, share: float) -> float:
    """Return the bound of what ends the waiting for launches. For a trace alone `share` is an
    estimate, and the bound follows from the waiting that the trace shows. What looks like a pause
    may be launching after all. No step is shorter than the device's work."""
    estimated, shown = waiting(case), case.idle(*LAUNCH_WAITS)
    share = share + pauses(case)
    bound = gain_without(share * shown / estimated if estimated else share)
    return min(bound, 1 / case.busy if case.busy else float("inf"))


def doubt_of(case: Case) -> str:
    """Return why the waiting in a trace alone is doubtful; "" for a run."""
    if case.kind == "run":
        return ""
    if case.sites.stacks:
        return "recording Python stacks slows the host, often to half: untraced, the GPU waits less"
    return "recording slows the host a little: untraced, the device waits less"


def mostly_small(case: Case) -> bool:
    """Return whether a step has many kernels and most of them are over before the host has launched
    the next."""
    every = launches(case)
    return every >= MIN_LAUNCHES and kernels(small(case)) >= MIN_SMALL_KERNEL_SHARE * every


def launches(case: Case) -> float:
    """Return the kernels of a step, without those of replayed graphs."""
    return kernels(case.sites.ops)


def small(case: Case) -> list[OpSite]:
    """Return the sites whose kernels are shorter than the time to the next launch."""
    pace, found = pace_ns(case), []
    for site in case.sites.ops:
        count = kernels([site])
        if count and site.device_ns / max(count, site.calls) < pace:
            found.append(site)
    return found


def pace_ns(case: Case) -> float:
    """Return the length below which a kernel is small. A fixed length does not do: the kernels of a
    ResNet-50, 26 µs in the mean and 23 % of them under 10 µs, left an H200 waiting 37 % of the step
    for a host that needs 40 µs a launch."""
    pace = launch_ns(case)
    return max(pace, SMALL_KERNEL_NS) if pace <= MAX_LAUNCH_NS else SMALL_KERNEL_NS


def launch_ns(case: Case) -> float:
    """Return the host's untraced time from one launch to the next, without waits for anything but
    launches; 0 if it is not known."""
    many = launches(case)
    if case.busy is None or not many:
        return 0.0
    launching = case.busy + case.idle("launch-bound")
    return launching * case.step_ms * 1e6 / slowed(case) / many


def fixed_sizes(case: Case) -> bool | None:
    """Return whether every step calls the same operators with the same sizes; None if unknown."""
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
    return changing <= MAX_CHANGING_SHARE * whole if whole else None


def can_look(case: Case, rule: Rule) -> bool:
    return all(case.has(need) for need in rule.needs)


MIN_TURNS = 16
"""Calls of one operator from one function that count as a loop. Fewer are a model's depth, or
written out by hand."""
MIN_PARAMETER_SHARE = 0.5
"""A loop may go over parameters if it has at least this many turns for each parameter: a mean over
weights leaves out biases."""
MIN_FITTING_SHARE = 0.6
"""Share of a loop's calls with the sizes of a parameter, from which it goes over parameters."""
_MODEL_TENSORS = ("parameters", "state_dict", "buffers", "params")
"""Words in the iterable of a loop that goes over a model's own tensors."""
Over = Literal["gradients", "state", "data"]

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
    """How often the body runs in a step."""
    calls: float
    """Calls of operators a step, without those of the backward."""
    ops: tuple[str, ...]
    """The most frequent first."""
    sites: tuple[OpSite, ...]
    """The operators with those that they call, and those of the backward."""

    @property
    def name(self) -> str:
        return function_label(self.place.function, self.place.file)


def loops(case: Case) -> tuple[Loop, ...]:
    """Return the loops, those with the most calls first."""
    watched = [site for site in case.sites.ops if site.phase not in ("optimizer", "input")]
    found = [loop for group in by_function(watched).values() for loop in _loops_of(case, group)]
    sorted_out = [replace(o, over="data") if _gathers_rows(case, o) else o for o in found]
    return tuple(sorted(sorted_out, key=lambda loop: -loop.calls))


def _gathers_rows(case: Case, loop: Loop) -> bool:
    """Return whether a loop collects a result for each row of a tensor and updates nothing. By the
    sizes of its tensors, such a loop looks like one over parameters; only the source tells."""
    if loop.over != "state":
        return False
    written = [one for one in loops_at(case.sources, loop.place) if one.works and not one.trains]
    return bool(written) and all(
        one.collects
        and not any(name.endswith("_") for name in one.calls)
        and not any(word in one.over for word in _MODEL_TENSORS)
        for one in written
    )


def _loops_of(case: Case, group: list[OpSite]) -> Iterator[Loop]:
    turns: dict[tuple[str, str], float] = defaultdict(float)
    for site in group:
        if site.phase != "backward" and not site.within and site.op.startswith("aten::"):
            turns[site.op, site.module] += site.calls
    many = {key: n for key, n in turns.items() if n >= MIN_TURNS}
    if not any(op not in VIEWS for op, _ in many):
        return
    forward = [s for s in group if s.phase != "backward" and (outer(s), s.module) in many]
    modules = {module for _, module in many}
    backward = [
        s
        for s in group
        if s.phase == "backward"
        and s.module in modules
        and s.calls >= MIN_TURNS / 2
        and ACCUMULATE not in s.op
        and not s.inside(ACCUMULATE)
    ]
    for over, chosen in _by_subject(case, forward, backward):
        names = {outer(s) for s in chosen} - VIEWS
        seen = {op: sum(n for (o, _), n in many.items() if o == op) for op in names}
        place = next((s.place for s in chosen if s.place is not None), None)
        if not seen or place is None:
            continue
        own = [s for s in chosen if s.phase != "backward"]
        # Each turn calls one operator once: of those called often, the one called least.
        least_often = MIN_FITTING_SHARE / 2 * max(seen.values())
        yield Loop(
            place=place,
            over=over,
            turns=min(n for n in seen.values() if n >= least_often),
            calls=_calls(s for s in own if not s.within and s.op not in VIEWS),
            ops=tuple(sorted(seen, key=lambda op: (-seen[op], op))),
            sites=(*own, *(backward if over == "data" else ())),
        )


def _by_subject(
    case: Case, forward: list[OpSite], backward: list[OpSite]
) -> Iterator[tuple[Over, list[OpSite]]]:
    """Yield the loop as one over data, or the parts of it that go over parameters: one with their
    gradients, one with tensors of the same sizes."""
    own = [s for s in forward if not s.within and s.op not in VIEWS]
    outside = [s for s in own if not s.module]  # a model's own forward does not go over parameters
    sizes = parameter_dims(case)
    sized = [s for s in outside if dims_of(s) in sizes] if case.sites.shapes else outside
    counts = {op: _calls(s for s in sized if s.op == op) for op in {s.op for s in sized}}
    # Sums of norms are added up in a tensor without dimensions: those calls tell nothing.
    tensors = [s for s in own if dims_of(s) != ()]
    enough = MIN_PARAMETER_SHARE * parameters(case)
    fits = _calls(sized) >= MIN_FITTING_SHARE * _calls(tensors)
    if backward or not fits or max(counts.values(), default=0.0) < max(MIN_TURNS, enough):
        in_place = _calls(s for s in outside if s.op.endswith("_"))
        updates = not backward and in_place >= MIN_FITTING_SHARE * _calls(own)
        yield ("state" if updates else "data"), forward
        return
    often = {op for op, calls in counts.items() if calls >= enough}
    if not often & _NORMS:
        yield "state", forward
        return
    averaging = often & {"aten::lerp_", "aten::copy_", "aten::add_", "aten::lerp", "aten::add"}
    yield "gradients", [s for s in forward if outer(s) not in averaging]
    if averaging:
        yield "state", [s for s in forward if outer(s) in averaging]


def _calls(sites: Iterable[OpSite]) -> float:
    return sum(site.calls for site in sites)
