"""Operators that one function calls many times a step: a loop in Python, and over what."""

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
from ridgeline.records.op_site import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.reading.loops import loops_at

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
        return f"{self.place.function}()" if self.place.function.isidentifier() else "A loop"


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
