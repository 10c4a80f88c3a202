"""A program that never trains, and records every operator for a backward that never comes; or one
that trains, and whose backward goes through a model that is only asked."""

import ast
import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.memory_room import peak_bytes
from ridgeline.diagnosis.rule import MAX_SHARE, SHARE_TOLERANCE, Rule, make_finding
from ridgeline.diagnosis.rules._fix_code import fix_code, model_fix
from ridgeline.diagnosis.rules._user_code import user_sources
from ridgeline.diagnosis.step_times import share_of
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.reason_codes import Done
from ridgeline.records.sites import OpSite
from ridgeline.records.step_work import TraceMemory
from ridgeline.records.trace import Place
from ridgeline.source.kept_tensors import GraphNames

NODE_US = 5.0
"""Host time of an autograd node, made and freed again: 1.9 to 4.5 µs measured on linear layers and
layer norms of 16 features, against the same under inference_mode."""
PASSES = 3
"""Over the bytes kept, at most, on a host: fresh pages are zeroed, written where a block used again
would be in the cache, and given back. Measured 1.1 to 3.1 on
activations of 13 to 42 MB, at 12.7 GB/s."""
COPY_BYTES_S = 10e9
"""Where no ceiling of the memory is known."""
LEAST_SHARE = 0.01
LEAST_MEMORY = 0.05
LEAST_TEACHER = 0.02
LIVES = 2
"""The graph of a call lives until its result is replaced: while the next one is built."""

RULE = Rule(id="gradients-in-inference", family="memory", budget="overhead", needs=("trace",))


class Teacher(Struct, frozen=True, kw_only=True):
    module: str
    """Its path, as the trace has it: Sequential_0."""
    weights: int
    """Elements of its weights."""
    sites: tuple[OpSite, ...]
    """Operators of the backward that would be gone."""
    share: float
    """Of the step."""
    most: float
    """The whole backward: it cannot be more."""


def look(case: Case) -> Iterator[Finding]:
    traced = case.traced_memory
    if traced is not None and _trains(case):
        yield from _asked_only(case, traced)
        return
    if traced is None or traced.backwards or traced.nodes < 1:
        return
    share, memory = _share(case, traced), _memory(case, traced)
    if share < LEAST_SHARE and memory < LEAST_MEMORY:
        return
    place, written = _place(case)
    yield make_finding(
        RULE,
        claim=_claim(traced, memory),
        share=share,
        bound=_bound(case, traced, share),
        memory=memory,
        evidence=_evidence(case, traced, memory),
        place=place,
        fix="inference-mode",
        change=fix_code(case, place, *model_fix(case, "inference-mode", Done.INFERENCE_MODE))
        or _change(written),
        confidence=_confidence(case),
        doubt="" if case.capture is not None else "the trace may hold the forward of a training",
    )


def _asked_only(case: Case, traced: TraceMemory) -> Iterator[Finding]:
    """In training: a model whose gradients nobody uses."""
    seen = teacher(case)
    if seen is None or seen.share < LEAST_TEACHER or not case.step_ms:
        return
    place, written = _called(case, seen)
    name = re.sub(r"_\d+$", "", seen.module.rpartition(" / ")[2])
    adds = f"{units.significant(seen.weights)} weights of {seen.module}, added to in each step"
    part = f"{units.percent(seen.share)} of the step is the backward of {seen.module}"
    yield make_finding(
        RULE,
        claim=f"the backward goes through {name}, whose weights no optimizer updates",
        share=seen.share,
        bound=_limited(seen.most + _beside(case, traced)),
        evidence=[
            Evidence(what="gradients nobody takes", text=adds, value=seen.weights),
            Evidence(what="backward", text=part, value=seen.share),
        ],
        place=place,
        module=seen.module,
        change=f"{_callee(written)}.requires_grad_(False)   # once, before training; or call it "
        "under torch.no_grad()",
        confidence="medium",
        doubt="if gradients go through it to a model that is trained, only a part is saved",
    )


def _called(case: Case, seen: Teacher) -> tuple[Place | None, str]:
    """Where it is called: of the outermost modules of its class the one of about its size; of a
    module inside another, the function its operators are called from."""
    first, _, inner = seen.module.partition(" / ")
    modules = case.capture.modules if case.capture is not None and not inner else ()
    alike = [m for m in modules if m.name == re.sub(r"_\d+$", "", first)]
    nearest = min(alike, key=lambda m: abs(m.parameters - seen.weights), default=None)
    file, _, line = (nearest.place if nearest is not None else "").rpartition(":")
    if not file or not line.isdigit():
        return next((site.place for site in seen.sites if site.place is not None), None), ""
    source = case.sources.get(file)
    written = source.line(int(line)) if source is not None else ""
    function = source.function_name(int(line)) if source is not None else ""
    return Place(file=file, line=int(line), function=function), written


def _trains(case: Case) -> bool:
    capture = case.capture
    if capture is not None and (
        capture.optimizers or capture.stepping in ("optimizer", "backward")
    ):
        return True
    return any(step.backwards or step.optimizer_steps for step in case.steps)


def _share(case: Case, traced: TraceMemory) -> float:
    """Of the host's time; on a GPU only as far as the GPU waits for the host."""
    if not case.step_ms:
        return 0.0
    share = _nodes(case, traced)
    if not case.on_gpu:
        return min(share + _pass(case, traced), 1.0)
    busy = case.busy or 0.0
    return 0.0 if busy >= SATURATED else min(share, 1 - busy)


def _bound(case: Case, traced: TraceMemory, share: float) -> float | None:
    """A constant for each node is no bound: it was 9.5 µs in a service on a busy machine. What was
    measured beside the operators' work holds it, whatever one costs."""
    if not share:
        return None
    if case.on_gpu:
        return _limited(max(share, case.share_of("overhead")))
    return _limited(_beside(case, traced))


def _beside(case: Case, traced: TraceMemory) -> float:
    """What recording can cost at most, of a step on a CPU; on a GPU without the memory's part."""
    most = max(_nodes(case, traced), case.share_of("overhead"))
    return most if case.on_gpu else most + PASSES * _pass(case, traced)


def _limited(share: float) -> float:
    return 1 / (1 - min(share * (1 + SHARE_TOLERANCE), MAX_SHARE))


def _nodes(case: Case, traced: TraceMemory) -> float:
    return traced.nodes * NODE_US / 1e3 / case.step_ms


def _pass(case: Case, traced: TraceMemory) -> float:
    """The memory once over what the graph keeps. An allocator of a GPU's keeps its blocks."""
    ceiling = case.device.ceiling("copy") if case.device is not None else None
    rate = ceiling.value if ceiling is not None and ceiling.value else COPY_BYTES_S
    return traced.forward_bytes / rate * 1e3 / case.step_ms


def _memory(case: Case, traced: TraceMemory) -> float:
    peak = peak_bytes(case) if case.on_gpu else case.memory.host_peak_bytes or traced.peak_bytes
    return min(LIVES * traced.forward_bytes / peak, 1.0) if peak else 0.0


def _claim(traced: TraceMemory, memory: float) -> str:
    nodes = units.significant(traced.nodes)
    said = f"nothing is trained, yet each step makes {nodes} autograd nodes"
    if memory < LEAST_MEMORY:
        return said
    return f"{said} and keeps {units.bytes_(traced.forward_bytes)} of activations"


def _evidence(case: Case, traced: TraceMemory, memory: float) -> list[Evidence]:
    rows = [
        Evidence(what="autograd nodes", text=f"{units.significant(traced.nodes)} a step, 0 run",
                 value=traced.nodes),
        Evidence(
            what="kept when the model's call ends",
            text=f"{units.bytes_(traced.forward_bytes)}, with the call before it "
            f"{units.percent(memory)} of the peak",
            value=traced.forward_bytes,
        ),
    ]  # fmt: skip
    if overhead := case.share_of("overhead"):
        text = f"{units.percent(overhead)} of the step: the nodes' time is in it"
        rows.append(
            Evidence(what="Python, dispatch and small operators", text=text, value=overhead)
        )
    if case.capture is not None:
        calls = sum(module.calls for module in case.capture.modules if not module.loss)
        rows.append(Evidence(what="the run", text=f"{calls} calls of models, no backward"))
    return rows


def _confidence(case: Case) -> Confidence:
    return "high" if case.capture is not None else "medium"


def _place(case: Case) -> tuple[Place | None, str]:
    """Where the model is called, and the line as written."""
    modules = case.capture.modules if case.capture is not None else ()
    for module in sorted(modules, key=lambda m: -m.parameter_bytes):
        file, _, line = module.place.rpartition(":")
        if file and line.isdigit():
            source = case.sources.get(file)
            function = source.function_name(int(line)) if source is not None else ""
            written = source.line(int(line)) if source is not None else ""
            return Place(file=file, line=int(line), function=function), written
    for source in user_sources(case):
        names = GraphNames(source)
        for scope in (source.module, *source.functions):
            calls = [c for c in names.model_calls(scope) if not names.is_under_no_grad(c)]
            looped = sorted(calls, key=lambda c: (-source.loops(c), c.lineno))
            if looped and getattr(scope, "name", "") != "forward":
                line_ = looped[0].lineno
                name = getattr(scope, "name", "")
                return Place(file=source.file, line=line_, function=name), source.line(line_)
    site = next((s for s in case.sites.ops if s.phase == "forward" and s.place), None)
    return (site.place if site is not None else None), ""


def _callee(written: str) -> str:
    """What the innermost call of a line calls: teacher of soft = teacher(x).softmax(-1)."""
    try:
        calls = [node for node in ast.walk(ast.parse(written)) if isinstance(node, ast.Call)]
    except SyntaxError:
        calls = []
    named = [c.func for c in calls if not any(isinstance(n, ast.Call) for n in ast.walk(c.func))]
    return ast.unparse(named[-1]) if named else "teacher"


def _change(written: str) -> str:
    text = written.partition("  #")[0] or "output = model(batch)"
    if text.endswith(":"):  # a line that opens a block cannot be moved alone
        return "@torch.inference_mode()  # above the function that calls the model"
    return f"with torch.inference_mode():\n    {text}"


_ACCUMULATES = "torch::autograd::AccumulateGrad"
_WEIGHT_AT = {"aten::t": 0, "aten::embedding": 0, "aten::convolution": 1}
"""Operators of a forward that take a weight, and as which argument."""
_BESIDE = ("optimizer", "other")
"""Phases in which parameters are updated, by an optimizer or by hand."""
_Shape = tuple[int, ...]


def teacher(case: Case) -> Teacher | None:
    """None: there is none, or it cannot be told. With several optimizers one may not have stepped
    in the traced steps, and ranks exchange gradients in buffers of their own."""
    capture = case.capture
    if capture is None or len(capture.optimizers) != 1 or case.ranks > 1 or not case.sites.shapes:
        return None
    kept, fresh = _gradients(case)
    kept -= _updated(case) | fresh
    updated = [m for m, shape in _weights(case) if shape in fresh]
    module = _outermost(_common(m for m, shape in _weights(case) if shape in kept), updated)
    if not fresh or not module:
        return None
    backward = [site for site in case.sites.ops if site.phase == "backward"]
    sites = tuple(s for s in backward if _within(s.module, module) or _adds(s) in kept)
    share, most = _teacher_share(case, sites, backward)
    return Teacher(
        module=module, weights=_elements(case, kept), sites=sites, share=share, most=most
    )


def _gradients(case: Case) -> tuple[set[_Shape], set[_Shape]]:
    """Shapes of matrices whose gradients are always added to, and of those put in place."""
    calls: dict[_Shape, float] = {}
    added: dict[_Shape, float] = {}
    for site in case.sites.ops:
        shape = _shape(site, 0)
        if site.op == _ACCUMULATES and len(shape) > 1:
            calls[shape] = calls.get(shape, 0.0) + site.calls
        if (shape := _adds(site)) and len(shape) > 1:
            added[shape] = added.get(shape, 0.0) + site.calls
    kept = {shape for shape in calls if added.get(shape, 0.0) >= calls[shape]}
    return kept, {shape for shape in calls if shape not in added}


def _adds(site: OpSite) -> _Shape:
    """What a gradient is added to; () of any other site."""
    return _shape(site, 0) if site.op == "aten::add_" and site.inside(_ACCUMULATES) else ()


def _updated(case: Case) -> set[_Shape]:
    """Every shape an operator between backward and forward was given, alone or in a list."""
    found: set[_Shape] = set()
    for site in case.sites.ops:
        if site.phase in _BESIDE:
            for dims in site.dims:
                lists = dims if dims and isinstance(dims[0], list | tuple) else [dims]
                found |= {tuple(one) for one in lists}
    return found


def _weights(case: Case) -> Iterator[tuple[str, _Shape]]:
    """(module, shape) of weights in the forward."""
    for site in case.sites.ops:
        if site.phase == "forward" and site.module and site.op in _WEIGHT_AT:
            yield site.module, _shape(site, _WEIGHT_AT[site.op])


def _shape(site: OpSite, at: int) -> _Shape:
    dims = site.dims[at] if len(site.dims) > at else ()
    return tuple(dims) if all(isinstance(size, int) for size in dims) else ()


def _common(modules: Iterable[str]) -> str:
    paths = [module.split(" / ") for module in modules]
    same = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        same.append(parts[0])
    return " / ".join(same)


def _outermost(path: str, updated: list[str]) -> str:
    """The widest module around these weights that has none that are updated; "": there is none."""
    parts = path.split(" / ") if path else []
    around = [" / ".join(parts[: i + 1]) for i in range(len(parts))]
    return next((one for one in around if not any(_within(m, one) for m in updated)), "")


def _within(module: str, outer: str) -> bool:
    return module == outer or module.startswith(f"{outer} / ")


def _elements(case: Case, kept: set[_Shape]) -> int:
    count = 0.0
    for site in case.sites.ops:
        if site.op == _ACCUMULATES and (shape := _shape(site, 0)) in kept:
            size = 1
            for length in shape:
                size *= length
            # a parameter is accumulated once a backward
            count += size * max(round(site.calls), 1)
    return round(count)


def _teacher_share(
    case: Case, sites: Iterable[OpSite], backward: list[OpSite]
) -> tuple[float, float]:
    """Of the untraced backward the part that the traced one spends there; on a GPU, whose steps
    wait for more than their backward, what is exposed of it."""
    gone = case.exposed(*sites)
    whole = share_of(case.times, "backward") if case.times.phases else 0.0
    spent = sum(site.host_ns for site in backward)
    if case.on_gpu or not whole or not spent:
        return gone, max(gone, whole)
    return whole * min(sum(site.host_ns for site in sites) / spent, 1.0), whole
