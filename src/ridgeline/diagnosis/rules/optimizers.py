"""The update by the optimizer, and the zeroing of gradients before it."""

import ast
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import (
    Rule,
    derived,
    gain_without,
    make_finding,
    measured,
    of_step,
    read,
)
from ridgeline.diagnosis.rules._launch import (
    ACCUMULATE,
    MIN_SHARE,
    calls,
    cost,
    dims_of,
    kernels,
    loops,
    outer,
    parameter_dims,
    parameters,
)
from ridgeline.diagnosis.rules._user_code import (
    files_of,
    fix_code,
    located,
    option,
    place_at,
    user_sources,
)
from ridgeline.fixes.fix import SAVED_BESIDE_UPDATE_ON_CPU
from ridgeline.records.finding import Finding
from ridgeline.records.run import OptimizerSeen
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall, calls_at
from ridgeline.source.file import last_name
from ridgeline.source.loops import SourceLoop, loops_at

UNFUSED_OPTIMIZER = Rule(
    id="unfused-optimizer", family="launch", budget="overhead", needs=("sites",)
)
MIN_CALLS = 16
"""Calls a step. Fewer cost 0.1 ms at most."""
MIN_DEFAULT_SHARE = 0.2
"""The share of the step that must be saved before torch's defaults are reported: most programs,
well-tuned ones too, leave them alone."""
MIN_FUSABLE_DEFAULT_SHARE = 0.1
"""The same for an update that goes through parameters one by one and that torch can fuse. There,
one option saves the time. On a small variational autoencoder on a CPU the update took 1.35 of 3.31
ms, 18 % of the step was said to be saved, and fusing made the step 1.06 to 1.2 × as fast."""
MIN_DEFAULT_CALLS = 1000
"""Calls a step, some 5 ms, of the loop over parameters that is torch's default on a CPU. Fewer are
not reported where the program leaves the default alone and torch has no fused update: the only
advice would be `foreach=True`, which saves nothing but calls."""
FUSED_OF_FOREACH = 0.35
"""Share of the memory traffic of `_foreach` operators that a fused Adam still moves: 7 of 20 passes
by count of its operators, not measured."""
FUSED_PASSES_SHARE = {"Adam": 0.35, "AdamW": 0.35, "Adagrad": 0.45, "SGD": 0.65}
"""Passes over memory of the fused update, as a share of those of the update tensor by tensor. They
are counted from the operators: Adam 7 of 20, Adagrad 5 of 11, SGD with momentum 5 of 8."""
START_NS = {True: 5_000.0, False: 50_000.0}
"""The part of a kernel on a GPU, and of a call on a CPU, that is taken for its start. What is
longer works on its data, which one call for all parameters does not change. The smallest kernel
takes 2 µs, a traced call 5 to 30 µs."""
MIN_CALLS_PER_PARAMETER = 0.8
"""Calls for each parameter from which the update is taken for a loop over them: SGD's has one."""
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
PASSES = {"Adam": 7, "AdamW": 7, "SGD": 3, "Adagrad": 5}
"""How often a fused update passes over memory as large as the parameters: it reads parameter,
gradient and state, and writes parameter and state."""
_KNOWN = frozenset((*FUSED, "RMSprop", "NAdam", "RAdam", "Adadelta", "Adamax", "Rprop", "ASGD",
                    "Adafactor"))  # fmt: skip
_WITHOUT = ("SparseAdam", "LBFGS")
"""Optimizers of torch without an update of all parameters at once."""
_BY_TENSOR = ("Adafactor",)
"""Optimizers that go through their parameters one by one on a GPU too, to save memory."""
_FIXES = {"fused": "fused-optimizer", "foreach": "foreach-optimizer"}
_ZEROING = ("aten::zero_", "aten::_foreach_zero_")
_REDUCES = frozenset(f"aten::{name}" for name in (
    "mean", "sum", "norm", "linalg_vector_norm", "matmul", "bmm", "mm", "max", "amax", "var",
))  # fmt: skip
"""Operators in no update that torch fuses: Adafactor and LAMB take norms, Muon multiplies."""
_SMALL = ("aten::item", "aten::is_nonzero", "aten::result_type")


class _Update(Struct, frozen=True):
    sites: tuple[OpSite, ...]
    calls: float
    by_tensor: bool
    written: SourceLoop | None = None
    """The loop of an update that the program writes itself."""


class _Made(Struct, frozen=True):
    place: Place
    name: str
    node: ast.Assign | ast.Return | ast.Expr
    call: ast.Call


def unfused_optimizer(case: Case) -> Iterator[Finding]:
    """The optimizer updates one parameter at a time, or passes over memory too often."""
    update = _update(case) or _by_hand(case)
    optimizers = case.capture.optimizers if case.capture is not None else ()
    seen = next((one for one in optimizers if one.anchor), next(iter(optimizers), None))
    if update is None:
        return
    traced = case.sites.optimizer if update.written is None else ""
    called = _made_at(case, seen, update, traced)
    name = seen.name if seen is not None else traced or (called.name if called is not None else "")
    if name in _WITHOUT or (not update.by_tensor and name and name not in FUSED):
        return  # torch has no faster update, or the program has the fastest already
    share = _share(case, seen, update, name)
    if share < MIN_SHARE:
        return
    if _defaults(case, seen, update, name):
        fused_instead = update.by_tensor and _fusable(update, name)
        few = update.by_tensor and update.calls < MIN_DEFAULT_CALLS
        if share < (MIN_FUSABLE_DEFAULT_SHARE if fused_instead else MIN_DEFAULT_SHARE):
            return
        if few and not fused_instead:
            return
    place, line, change = _made(case, seen, update, called, name)
    who = (name if update.written is None else "") or "The optimizer"
    number = parameters(case)
    each = f", {units.significant(update.calls / number, 2)} a parameter" if number else ""
    evidence = [
        of_step("optimizer", share),
        measured("calls a step", f"{units.count(round(update.calls))}{each}", update.calls),
    ]
    if seen is not None and seen.options:
        named = (key for key in ("foreach", "fused") if key in seen.options)
        evidence.append(read("options", ", ".join(f"{key}={seen.options[key]}" for key in named)))
    yield make_finding(
        UNFUSED_OPTIMIZER,
        claim=_claim(who, update, number),
        share=share,
        bound=_bound(case, update, name),
        evidence=evidence,
        place=place,
        line=line,
        fix="" if update.written is not None else _FIXES[_wanted(update, name)],
        change=change,
        confidence="high" if seen is not None else "medium",
        doubt="foreach=True takes about the parameters' size more memory at the peak"
        if "foreach=True" in change and update.written is None
        else "",
    )


def _share(case: Case, seen: OptimizerSeen | None, update: _Update, name: str) -> float:
    """Return the share of the step that goes: the calls, and the passes over memory that a fused
    update does not make. If torch has no fused update, all passes stay."""
    if not _fusable(update, name):
        return cost(case, update.sites, stays_ns=_working_ns(case, update.sites))
    if not case.on_gpu and update.by_tensor:
        return _share_on_cpu(case, seen, update, name)
    kept = _kept_bytes(case, seen)
    if not kept and update.by_tensor and case.on_gpu:
        working = FUSED_OF_FOREACH * _working_ns(case, update.sites)
        return cost(case, update.sites, stays_ns=working)
    share = cost(case, update.sites, kept=kept)
    return share if update.by_tensor or kept else share * (1 - FUSED_OF_FOREACH)


def _share_on_cpu(case: Case, seen: OptimizerSeen | None, update: _Update, name: str) -> float:
    """Return the share of the step that a fused update saves on a CPU. The fused update takes no
    longer than its bytes at the memory's rate. Nor does it take longer than its part of the passes
    takes now: a small model lies in the cache, where passes are faster than memory."""
    whole = cost(case, update.sites)
    spent_ns = sum(site.host_ns for site in update.sites)
    working = _working_ns(case, update.sites) / spent_ns if spent_ns else 0.0
    by_passes = whole * (1 - FUSED_PASSES_SHARE.get(name, FUSED_OF_FOREACH) * working)
    kept = _kept_bytes(case, seen)
    if not kept or case.device is None or case.device.ceiling("copy") is None:
        return by_passes
    return max(by_passes, cost(case, update.sites, kept=kept))


def _bound(case: Case, update: _Update, name: str) -> float | None:
    """Return the bound for a fused update on a CPU, which may gain more than the update itself
    takes: its passes over memory push the data of forward and backward out of the cache. Return
    None where the share gives the bound."""
    if case.on_gpu or not update.by_tensor or not _fusable(update, name):
        return None
    return gain_without(SAVED_BESIDE_UPDATE_ON_CPU * cost(case, update.sites))


def _fusable(update: _Update, name: str) -> bool:
    """Return whether torch has a fused update: by the optimizer's name, else by its operators."""
    if name:
        return name in FUSED
    return not any(outer(site) in _REDUCES for site in update.sites)


def _wanted(update: _Update, name: str) -> str:
    return "fused" if _fusable(update, name) else "foreach"


def _working_ns(case: Case, sites: tuple[OpSite, ...]) -> float:
    """Return the time that operators work on data, beyond their start."""
    if case.on_gpu:
        return sum(max(s.device_ns - START_NS[True] * kernels([s]), 0.0) for s in sites)
    return sum(max(s.host_ns - START_NS[False] * s.calls, 0.0) for s in sites)


def _claim(name: str, update: _Update, number: float) -> str:
    many = units.count(round(update.calls))
    if update.by_tensor:
        of = f" for {round(number)} parameters" if number else ""
        return f"{name} updates one parameter at a time: {many} operator calls a step{of}"
    return f"{name} is not fused: {many} passes over all parameters where one would do"


def _update(case: Case) -> _Update | None:
    """Return the operators of the update, or None if they are fused already."""
    inside = [s for s in case.sites.ops if s.phase == "optimizer" and outer(s) not in _ZEROING]
    if any("_fused_" in outer(site) for site in inside):
        return None
    at_once = [site for site in inside if "_foreach_" in outer(site)]
    each = [site for site in inside if "_foreach_" not in outer(site)]
    many = calls(s for s in each if s.op.startswith("aten::") and s.op not in _SMALL)
    if many >= max(MIN_CALLS, MIN_CALLS_PER_PARAMETER * parameters(case)) and many > calls(at_once):
        return _Update(tuple(inside), many, True)
    if case.on_gpu and at_once and calls(at_once) >= 2:
        return _Update(tuple(at_once), calls(at_once), False)
    return None


def _by_hand(case: Case) -> _Update | None:
    """Return the loop over parameters that uses their gradients, of a program without optimizer."""
    for loop in loops(case) if case.sites.stacks else ():
        for at in loops_at(case.sources, loop.place):
            if loop.over == "state" and not at.trains and "grad" in at.attributes:
                return _Update(loop.sites, loop.calls, True, at)
    return None


def _defaults(case: Case, seen: OptimizerSeen | None, update: _Update, name: str) -> bool:
    """Return whether the program chose nothing, and torch took its default."""
    if seen is None or update.written is not None:
        usual = not (update.by_tensor and case.on_gpu) or name in _BY_TENSOR
        return update.written is None and usual
    chosen = {seen.options.get(key, "None") for key in ("foreach", "fused")}
    # An optimizer of the user's own has no such options; its loop is no default.
    known = "foreach" in seen.options or "fused" in seen.options
    return known and chosen == {"None"}


def _kept_bytes(case: Case, seen: OptimizerSeen | None) -> float:
    modules = case.capture.modules if case.capture is not None else ()
    held = sum(module.parameter_bytes for module in modules if not module.loss)
    return float(held) * PASSES.get(seen.name, 2) if seen is not None else 0.0


def _made_at(case: Case, seen: OptimizerSeen | None, update: _Update, traced: str) -> _Made | None:
    """The line that makes the optimizer, where the source shows it."""
    if update.written is not None or (seen is not None and seen.name not in _KNOWN):
        return None
    steps = place_at(seen.place) if seen is not None else None
    first = [*files_of(update.sites), *([steps.file] if steps is not None else ())]
    for source in user_sources(case, first):
        for node in source.nodes:
            if (
                isinstance(node, ast.Assign | ast.Return | ast.Expr)
                and isinstance(call := node.value, ast.Call)
                and (name := _names(call, seen.name if seen is not None else traced))
            ):
                function = source.function_name(call.lineno)
                at = Place(file=source.file, line=call.lineno, function=function)
                return _Made(at, name, node, call)
    return None


def _made(
    case: Case, seen: OptimizerSeen | None, update: _Update, called: _Made | None, name: str
) -> tuple[Place | None, int | None, str]:
    """Return the line that makes the optimizer, and that line as it should be. If it is not found,
    return where the optimizer steps."""
    measured = next((site.place for site in update.sites if site.place is not None), None)
    if update.written is not None or (name and name not in _KNOWN):
        return _own_loop(case, measured, update.written)
    wanted = f"{_wanted(update, name)}=True"
    if called is not None:
        fix = option(_FIXES[_wanted(update, name)], called.place, called.name, wanted[:-5], True)
        if code := fix_code(case, called.place, fix):
            return called.place, called.place.line, code
        change = _rewritten(called.node, called.call, wanted)
        return called.place, called.place.line, change
    steps = place_at(seen.place) if seen is not None else None
    change = f"optimizer = torch.optim.{name}(model.parameters(), …, {wanted})"
    if not name:
        which = "Adam, AdamW, SGD, Adagrad" if wanted == "fused=True" else "one of torch.optim"
        change = f"{wanted}  # where the optimizer is made: {which}"
    return steps or measured, None, change


def _own_loop(
    case: Case, place: Place | None, at: SourceLoop | None
) -> tuple[Place | None, int | None, str]:
    """Return the loop of an update that the program writes itself, and how to do without it."""
    written = [one for one in loops_at(case.sources, place) if not one.trains]
    at = at or next(iter(written), None)
    return (
        place,
        at.line if at is not None else None,
        (
            "gradients = [p.grad for p in parameters]\n"
            "torch._foreach_add_(parameters, gradients, alpha=-lr)  # or torch.optim, fused=True"
        ),
    )


def _names(call: ast.Call, seen: str) -> str:
    """Return the optimizer that a call makes; "" if it makes none, or not the one that was seen."""
    name = last_name(call)
    if seen:
        return name if name == seen else ""
    fused = any(k.arg == "fused" and ast.unparse(k.value) == "True" for k in call.keywords)
    return name if name in _KNOWN and not fused else ""  # a fused one is not what was traced


def _rewritten(node: ast.Assign | ast.Return | ast.Expr, call: ast.Call, wanted: str) -> str:
    option = ast.keyword(arg=wanted.split("=")[0], value=ast.Constant(value=True))
    kept = [k for k in call.keywords if k.arg not in ("foreach", "fused")]
    better = ast.Call(func=call.func, args=call.args, keywords=[*kept, option])
    if isinstance(node, ast.Assign):
        targets = " = ".join(ast.unparse(target) for target in node.targets)
        return f"{targets} = {ast.unparse(better)}"
    return f"return {ast.unparse(better)}" if isinstance(node, ast.Return) else ast.unparse(better)


ZERO_GRAD_FILL = Rule(id="zero-grad-fill", family="launch", budget="work", needs=("sites",))

_FILLS = ("aten::zero_", "aten::_foreach_zero_")
CPU_MARGIN = 1.2
"""On a CPU the gain may be this many times the operators' own time. That time bounded a twin's gain
by 1.34 ×; alternating with its fixed twin in one process the gain was 1.27 × (medians) to 1.37 ×
(lower quartiles), on a busy machine. The rest was not measured: filling may push other data out of
the cache."""


def zero_grad_fill(case: Case) -> Iterator[Finding]:
    """Gradients are filled with zeros each step and added to, where they could be made anew."""
    fills = _fills(case)
    adds = [
        s for s in case.sites.ops if s.op in ("aten::add_", "aten::add") and s.inside(ACCUMULATE)
    ]
    added, filled = sum(s.calls for s in adds), _filled(case, fills)
    if not fills or not added:  # without additions these are buffers of another kind
        return
    # Only the first addition of a gradient that is accumulated over several batches is needless.
    part = min(filled / added, 1.0)
    filling, adding = cost(case, fills), part * cost(case, adds)
    share = (filling + adding) * (1.0 if case.on_gpu else CPU_MARGIN)
    if share < MIN_SHARE:
        return
    place = next((site.place for site in fills if site.place is not None), None)
    call = _call(calls_at(case.sources, place, ("zero_grad", "zero_")))
    moved = sum(site.bytes for site in fills) + part * sum(site.bytes for site in adds)
    text = f"{units.percent(adding)} of the step, {round(added * part)} additions"
    yield make_finding(
        ZERO_GRAD_FILL,
        claim=f"Gradients are filled with zeros and added to each step: "
        f"{units.seconds(share * case.step_ms / 1e3)} that leaving them None saves",
        share=share,
        evidence=[
            of_step("filling", filling),
            measured("adding onto zeros", text, adding),
            *([derived("memory moved", units.bytes_(moved), moved)] if moved else ()),
        ],
        place=place,
        line=call.line if call is not None else None,
        fix="set-to-none",
        change=_change(case, call),
        confidence="high" if call is not None else "medium",
    )


def _fills(case: Case) -> list[OpSite]:
    """Return the operators that fill gradients: in `zero_grad`, or by hand with the sizes of the
    parameters."""
    sizes = parameter_dims(case)
    return [
        site
        for site in case.sites.ops
        if outer(site) in _FILLS
        and (site.phase == "optimizer" or (site.phase != "backward" and dims_of(site) in sizes))
    ]


def _filled(case: Case, fills: Sequence[OpSite]) -> float:
    """Return how many gradients a step fills, in one call or one by one."""
    if any(site.op == "aten::_foreach_zero_" for site in fills):
        return parameters(case)
    return sum(site.calls for site in fills if site.op == "aten::zero_")


def _call(calls: Sequence[SourceCall]) -> SourceCall | None:
    kept = [c for c in calls if c.option("set_to_none") == "False" or c.name == "zero_"]
    return next(iter(kept or calls), None)


def _change(case: Case, call: SourceCall | None) -> str:
    if call is None:
        return "optimizer.zero_grad(set_to_none=True)"
    if call.name == "zero_":
        return f"{call.on} = None"
    place = located(case, call.file, call.line)
    if code := fix_code(case, place, option("set-to-none", place, call.name, "set_to_none", True)):
        return code
    if call.option("set_to_none"):
        return call.without("set_to_none")
    return f"{call.on}.zero_grad(set_to_none=True)"
