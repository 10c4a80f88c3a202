"""Works out whether memory keeps growing, how much of it there is, and which lines of the user's
source keep tensors from step to step."""

import ast
import math
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._user_code import user_sources
from ridgeline.records.finding import Evidence
from ridgeline.records.step_memory import HeldTensors
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFile
from ridgeline.source.kept_tensors import Kept, kept

USUAL_STEPS = 100_000
"""Steps of a usual training: ResNet-50 on ImageNet takes 450,000, a short fine-tuning 10,000."""
MIN_FILLED_SHARE = 0.05
"""Growth that fills a smaller share of the memory in that many steps is no reason to change a
program."""
MIN_RESIDENT_GROWTH = 0.1
"""If nothing but the resident size grows, it must grow by this share of itself over the steps seen:
an allocator's own habits were seen to move it by 3 %."""
MIN_AGREEMENT = 0.5
"""The resident size must show this share of what the traced steps of a host leave behind."""
MIN_READ_AGAIN_SHARE = 0.3
"""Work must grow by this share of what memory grows by, each step, if each step reads again what is
kept. The share is below one half because a cache and its longer copy can both be alive when a step
ends: memory then grows twice as fast."""
MIN_WATCHED_S = 3.0
"""The resident size alone is believed once it was watched for this long after the trace."""
MIN_RESOLVED_BYTES = 8 * 2**20
"""A resident size that moves by less than this over the timed steps only wanders."""
USUAL_ROOM_BYTES = 16 * 2**30
"""How much memory there is taken to be if that is not known."""
MIN_LARGE_SHARE = 0.5
"""If this share of the device's memory is in use, neither the batch nor the model can be
doubled."""


class Growth(Struct, frozen=True, kw_only=True):
    """Memory that each step leaves larger."""

    bytes_per_step: float
    on: str
    """device, host"""
    room_bytes: int
    """How much of it there is; 0 if that is not known."""
    used_bytes: int
    evidence: tuple[Evidence, ...]
    sure: bool = True
    """Whether torch's own allocator shows the growth, and not only the resident size."""
    ran_out: bool = False
    """Whether the program died because this memory ran out."""
    confirmed: bool = True
    """False: only a few traced steps on a host, in which torch does not see that blocks older than
    the trace are freed. A buffer of the latest four batches looks like a leak there."""

    @property
    def steps_left(self) -> float | None:
        left = self.room_bytes - self.used_bytes
        return max(left, 0) / self.bytes_per_step if self.room_bytes else None

    @property
    def filled(self) -> float:
        """The share of all the memory that the growth takes in a usual number of steps."""
        return min(self.bytes_per_step * USUAL_STEPS / (self.room_bytes or USUAL_ROOM_BYTES), 1.0)


def growth(case: Case) -> Growth | None:
    """Return the growth of memory from step to step. Return None if memory does not grow, grows too
    slowly to matter, or grows with a sequence and is given back with it."""
    traced, on_gpu = case.traced_memory, case.on_gpu
    in_trace = traced.growth_bytes if traced is not None and _same(traced.device, on_gpu) else 0.0
    in_run = case.memory.growth_bytes_per_step
    rate = _rate(case, in_trace, in_run)
    if not rate:
        return _of_host(case)
    if _belongs_to_a_call(case, rate):
        return None
    exact = on_gpu or case.memory.host_growth_exact
    grown = Growth(
        bytes_per_step=rate,
        on="device" if on_gpu else "host",
        room_bytes=_room(case, on_gpu),
        used_bytes=_used(case, on_gpu),
        evidence=tuple(_evidence(case, in_trace, in_run, on_gpu)),
        ran_out=_ran_out(case, on_gpu),
        confirmed=_confirmed(case, in_run, exact),
    )
    return grown if grown.filled >= MIN_FILLED_SHARE else None


def _rate(case: Case, in_trace: float, in_run: float | None) -> float:
    """Return the growth in bytes a step. The measurement over the whole run decides: three traced
    steps may be those in which a buffer fills."""
    if in_run is None:
        return in_trace
    if case.on_gpu or case.memory.host_growth_exact:
        return in_run if in_run > 0 and _more_than_variables(case, in_run) else 0.0
    # The resident size is rough. Where it confirms the growth, the trace has the exact number.
    return in_trace if in_run >= MIN_AGREEMENT * in_trace else 0.0


def _confirmed(case: Case, in_run: float | None, exact: bool) -> bool:
    """Return whether growth is confirmed as a leak. A program that only calls its model may collect
    results on purpose or keep a cache for a sequence. Without a trace that shows otherwise, its
    growth alone is no leak."""
    if case.capture is not None and case.capture.stepping == "call" and case.traced_memory is None:
        return False
    if exact:
        return case.on_gpu or in_run is not None
    return (in_run or 0.0) * _steps(case) >= MIN_RESOLVED_BYTES


def _belongs_to_a_call(case: Case, rate: float) -> bool:
    """Return whether the memory of inference grows with its data and is released with it: a
    key-value cache from which each token is computed, or a list of results that a function
    returned."""
    if case.capture is None or case.capture.stepping != "call":
        return False
    return case.memory.growth_released or _is_read_again(case, rate) or _is_collected(case)


def _is_read_again(case: Case, rate: float) -> bool:
    """Return whether each traced step works on more bytes than the step before, by as much as
    memory grows."""
    traced = case.traced_memory
    return traced is not None and traced.work_growth_bytes >= MIN_READ_AGAIN_SHARE * rate


def _is_collected(case: Case) -> bool:
    """Return whether all lines that may keep what stays collect results on purpose: in a local
    variable of a function, or in a container that is read as a whole after the loop."""
    stays = case.traced_memory.stays if case.traced_memory is not None else ()
    place = stays[0].place if stays else None
    lines = kept_where_made(case, place) if place is not None else ()
    lines = lines or kept_lines(case)
    return bool(lines) and all(line.temporary or line.read_later for line in lines)


def _more_than_variables(case: Case, rate: float) -> bool:
    """Return whether memory has grown by more than the variables of one step can hold. At the end
    of a step its batch and outputs are still there, and they grow where sequences get longer. The
    size is not needed as proof if traced steps leave as much behind while each does the same work.
    """
    traced = case.traced_memory
    if traced is None or not _same(traced.device, case.on_gpu):
        return True
    if traced.growth_bytes >= MIN_AGREEMENT * rate and not _is_read_again(case, rate):
        return True
    return rate * _steps(case) >= traced.forward_bytes


def _of_host(case: Case) -> Growth | None:
    """Return the growth of the host's memory alone, or None. Malloc's own count is exact. The
    resident size also depends on how the allocator keeps memory, so it must grow by a good part of
    the program's size."""
    rate, peak = case.memory.host_growth_bytes_per_step, case.memory.host_peak_bytes
    exact = case.memory.host_growth_exact
    if not rate or rate < 0 or (exact and not case.on_gpu):  # `growth` has judged a CPU's
        return None
    if not exact:
        if not peak or _watched_s(case) < MIN_WATCHED_S:
            return None
        before = peak - rate * _alone_steps(case)  # only the peak covers the whole run
        if rate * _steps(case) < MIN_RESIDENT_GROWTH * before:
            return None
    what = "malloc's own count" if exact else "resident size"
    grown = Growth(
        bytes_per_step=rate,
        on="host",
        room_bytes=_room(case, False),
        used_bytes=_used(case, False),
        evidence=(
            Evidence(what=what, text=f"{_each(rate)}, measured after the trace", value=rate),
        ),
        ran_out=_ran_out(case, False),
        sure=exact,
    )
    return grown if not exact or grown.filled >= MIN_FILLED_SHARE else None


def _steps(case: Case) -> int:
    return len([step for step in case.steps if step.window == "light"])


def _alone_steps(case: Case) -> float:
    """Steps after the timed ones, by the clock."""
    windows = case.capture.windows if case.capture is not None else ()
    alone = sum(w.end_ns - w.start_ns for w in windows if w.kind == "alone")
    return alone / 1e6 / case.step_ms if case.step_ms else 0.0


def _watched_s(case: Case) -> float:
    """Return the seconds from the last trace to the end; infinite if the end was not recorded."""
    windows = case.capture.windows if case.capture is not None else ()
    traced = [w.end_ns for w in windows if w.kind == "traced" and w.end_ns]
    if not traced:
        return math.inf
    return (max(w.end_ns for w in windows) - max(traced)) / 1e9


def _evidence(case: Case, in_trace: float, in_run: float | None, on_gpu: bool) -> list[Evidence]:
    found = []
    if in_run:
        exact = on_gpu or case.memory.host_growth_exact
        what = "allocated at the end of a step" if exact else "resident size"
        found.append(Evidence(what=what, text=f"{_each(in_run)} over the run", value=in_run))
    traced = case.traced_memory
    if in_trace and traced is not None:
        ends = traced.step_ends_bytes
        text = f"{_each(in_trace)}, in each of {len(ends) - 1} after the first"
        found.append(Evidence(what="end of the traced steps", text=text, value=in_trace))
    return found


def each_step(grown: Growth, step_ms: float) -> Evidence:
    """Return what a finding of growth is about, first among its evidence: by its name a report
    knows that the memory it saves is of every step, and not of the peak."""
    text = units.bytes_(grown.bytes_per_step) + " a step"
    full = full_in(grown, step_ms)
    text += f"; the {grown.on} is full after {full}" if full and not grown.ran_out else ""
    return Evidence(what="growth", text=text, value=grown.bytes_per_step, source="derived")


def _ran_out(case: Case, on_gpu: bool) -> bool:
    full = case.capture.out_of_memory if case.capture is not None else None
    return full is not None and full.sure and full.on == ("device" if on_gpu else "host")


def until_when(grown: Growth, step_ms: float) -> str:
    """Return when memory runs out, such as "the host's memory is full after 12,000 steps (21 min)";
    "" if it is not known."""
    if grown.ran_out:
        return f"the {grown.on} ran out of memory"
    full = full_in(grown, step_ms)
    return f"the {grown.on}'s memory is full after {full}" if full else ""


def full_in(grown: Growth, step_ms: float) -> str:
    """Return "12,000 steps (21 min)"; "" if it is not known how much memory there is."""
    left = grown.steps_left
    if left is None:
        return ""
    when = f" ({units.seconds(left * step_ms / 1e3)})" if step_ms else ""
    return f"{units.count(left)} steps{when}"


def device_bytes(case: Case) -> int:
    """Return the memory of the GPU; 0 if that is not known."""
    known = case.memory.device_total_bytes or 0
    if not known and case.device is not None and case.device.kind == "cuda":
        known = case.device.memory_bytes
    return known


def device_peak_bytes(case: Case) -> int:
    """Return the most that was allocated on the GPU: over the run, else in the trace."""
    traced = case.traced_memory
    in_trace = traced.peak_bytes if traced is not None and traced.device != "cpu" else 0
    return case.memory.device_peak_bytes or in_trace


def fills_half(case: Case) -> bool:
    """Return whether memory ran out, or whether so much of the device is in use that nothing in it
    can be doubled. It is not short yet: that begins at 85 %."""
    full = case.capture.out_of_memory if case.capture is not None else None
    if full is not None and full.on == "device":
        return True
    whole = device_bytes(case)
    return bool(whole) and device_peak_bytes(case) >= MIN_LARGE_SHARE * whole


def _same(device: str, on_gpu: bool) -> bool:
    return (device != "cpu") == on_gpu


def host_bytes(case: Case) -> int:
    """Return the memory of the host; 0 if that is not known."""
    return case.run.environment.memory_bytes if case.run is not None else 0


def _room(case: Case, on_gpu: bool) -> int:
    return device_bytes(case) if on_gpu else host_bytes(case)


def _used(case: Case, on_gpu: bool) -> int:
    return device_peak_bytes(case) if on_gpu else case.memory.host_peak_bytes or 0


def _each(rate: float) -> str:
    return f"+{units.bytes_(rate)} a step"


_PUTS = frozenset({"append", "appendleft", "add", "put", "insert", "extend"})
_NUMBERS = frozenset({
    "item", "tolist", "float", "int", "len", "round", "str", "format", "join", "time",
    "perf_counter", "monotonic", "range", "copy", "keys", "values", "items",
})  # fmt: skip
_TENSOR = ".detach()"
"""A call that tells a reader of the source that a value is a tensor."""


def kept_lines(case: Case) -> tuple[Kept, ...]:
    """Return the lines that keep tensors: first those that were seen running, then those that keep
    a graph, then those that never release what they keep. A local variable of a function that
    trains nothing is left out, because it is gone before the next step ends."""
    found = [
        one for source in user_sources(case) for one in kept(source)
        if not (one.temporary or one.limited)
    ]  # fmt: skip
    return tuple(
        sorted(found, key=lambda one: (one.unseen, not one.graph, one.guessed, one.renewed))
    )


def kept_where_made(case: Case, place: Place) -> tuple[Kept, ...]:
    """Return the lines of one function that keep what is made in it, for a function that allocates
    what stays, as a trace says. An argument that is only put away was allocated by the caller. A
    call on the line (`self.seen.append(x.repeat(8))`) makes a tensor, whatever the source says."""
    source = case.sources.get(place.file)
    if source is None:
        return ()
    scope = source.scope(place.line) if place.function != "<module>" else source.module
    inside = {getattr(node, "lineno", 0) for node in source.walk(scope)}
    given = {node.arg for node in source.walk(scope) if isinstance(node, ast.arg)}
    found = {one.line: one for one in kept(source) if one.line in inside}
    for one in kept(_with_tensors(source, list(_made(source, scope)))):
        if one.line in inside and one.line not in found:
            text = source.line(one.line)
            value = one.value.removesuffix(_TENSOR)
            found[one.line] = replace(one, text=text, value=value, detached="", guessed=True)
    return tuple(one for _, one in sorted(found.items()) if one.value not in given)


def _made(source: SourceFile, scope: ast.AST) -> Iterator[ast.expr]:
    """Yield the calls and sums whose result is put into something."""
    for node in source.walk(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            value = node.args[-1] if node.func.attr in _PUTS and node.args else None
        else:
            subscript = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
            value = node.value if isinstance(node, ast.Assign) and subscript else None
        if isinstance(value, ast.BinOp | ast.Subscript) or (
            isinstance(value, ast.Call)
            and ast.unparse(value.func).rpartition(".")[2] not in _NUMBERS
        ):
            yield value


def _with_tensors(source: SourceFile, values: list[ast.expr]) -> SourceFile:
    """Return the source with these values marked as tensors."""
    lines = [line.encode() for line in source.lines]  # columns of the tree are bytes
    for value in sorted(values, key=lambda v: -v.col_offset):
        line = lines[value.lineno - 1]
        if value.end_lineno == value.lineno:
            start, end = value.col_offset, value.end_col_offset
            lines[value.lineno - 1] = (
                line[:start] + b"(" + line[start:end] + b")" + _TENSOR.encode() + line[end:]
            )
    return SourceFile(source.file, b"\n".join(lines).decode(errors="replace"))


def place_of_line(line: Kept | None) -> Place | None:
    return Place(file=line.file, line=line.line, function=line.function) if line else None


def held_in(case: Case) -> tuple[HeldTensors, ...]:
    """Return what was seen to grow in the live program and may hold the memory: what holds tensors
    or their graphs, else any other container."""
    held = case.capture.held if case.capture is not None else ()
    return tuple(one for one in held if one.kind != "objects") or held[:1]


def held_by(held: HeldTensors, file: str = "") -> str:
    """Return what holds memory: list `losses` of train.py:main. `file` is the name of the file in
    the report."""
    file = (file or held.file).rpartition("/")[2]
    what = "the graph behind" if held.kind == "graph" and held.holder == "tensor" else held.holder
    if not held.name:
        return held.holder
    if held.owner == "attribute":
        return f"{what} `{held.name}` of {held.owner_name}"
    if held.owner == "global":
        return f"{what} `{held.name}` of {file or held.owner_name}"
    where = f"{file}:{held.owner_name}" if file else held.owner_name
    if held.owner == "closure":
        return f"{what} `{held.name}` in the closure {where}"
    return f"{what} `{held.name}` of {where}"
