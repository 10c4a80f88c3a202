"""Python loops that call the same operators again and again, found by the calls of a function."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._launch import (
    ACCUMULATE,
    by_function,
    dims_of,
    outer,
    parameter_dims,
    parameters,
)
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.report.names import function_label
from ridgeline.source.loops import loops_at

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
