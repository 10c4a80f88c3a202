"""Inference that keeps what only training or a first pass needs."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import mean

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.memory_room import device_peak_bytes
from ridgeline.diagnosis.rule import Rule, gain_without, make_finding, measured, read
from ridgeline.diagnosis.rules._user_code import (
    fix_code,
    inference_mode,
    models,
    place_at,
    user_sources,
    uses_kv_cache,
)
from ridgeline.diagnosis.step_times import share_of
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import ModuleSeen, Step
from ridgeline.records.sites import OpSite
from ridgeline.records.step_work import TraceMemory
from ridgeline.records.trace import Place
from ridgeline.source.file import last_name
from ridgeline.source.kept_tensors import GraphNames

NODE_US = 5.0
"""Host time of an autograd node, made and freed again: 1.9 to 4.5 µs on linear layers and layer
norms of 16 features, against the same under inference_mode."""
MAX_MEMORY_PASSES = 3
"""Passes over the bytes kept, at most, on a host: fresh pages are zeroed, written where a reused
block would be in the cache, and given back. Measured 1.1 to 3.1 on activations of 13 to 42 MB, at
12.7 GB/s."""
DEFAULT_COPY_BYTES_S = 10e9
"""Rate of the memory if no ceiling is known."""
MIN_GRADIENTS_SHARE = 0.01
MIN_MEMORY_SHARE = 0.05
MIN_TEACHER_SHARE = 0.02
LIVE_GRAPHS = 2
"""The graph of a call lives until its result is replaced: while the next one is built."""

GRADIENTS_IN_INFERENCE = Rule(
    id="gradients-in-inference", family="memory", budget="overhead", needs=("trace",)
)


class Teacher(Struct, frozen=True, kw_only=True):
    module: str
    """Its path, as the trace has it: Sequential_0."""
    weights: int
    """Elements of its weights."""
    sites: tuple[OpSite, ...]
    """Operators of the backward that would be gone."""
    share: float
    """Its share of the step."""
    most: float
    """The whole backward: it cannot be more."""


def gradients_in_inference(case: Case) -> Iterator[Finding]:
    """A program that never trains, and records every operator for a backward that never comes; or
    one that trains, and whose backward goes through a model that is only asked."""
    traced = case.traced_memory
    if traced is not None and _trains(case):
        yield from _asked_only(case, traced)
        return
    if traced is None or traced.backwards or traced.nodes < 1:
        return
    share, memory = _share(case, traced), _memory(case, traced)
    if share < MIN_GRADIENTS_SHARE and memory < MIN_MEMORY_SHARE:
        return
    place, written = _place(case)
    yield make_finding(
        GRADIENTS_IN_INFERENCE,
        claim=_claim(traced, memory),
        share=share,
        bound=_bound(case, traced, share),
        memory=memory,
        evidence=_evidence(case, traced, memory),
        place=place,
        fix="inference-mode",
        change=fix_code(case, place, *inference_mode(case)) or _change(written),
        confidence="high" if case.capture is not None else "medium",
        doubt="" if case.capture is not None else "the trace may hold the forward of a training",
    )


def _asked_only(case: Case, traced: TraceMemory) -> Iterator[Finding]:
    """Yield a finding for training that goes back through a model whose gradients nobody uses."""
    seen = teacher(case)
    if seen is None or seen.share < MIN_TEACHER_SHARE or not case.step_ms:
        return
    place, written = _gradients_called(case, seen)
    name = re.sub(r"_\d+$", "", seen.module.rpartition(" / ")[2])
    adds = f"{units.significant(seen.weights)} weights of {seen.module}, added to in each step"
    part = f"{units.percent(seen.share)} of the step is the backward of {seen.module}"
    yield make_finding(
        GRADIENTS_IN_INFERENCE,
        claim=f"the backward goes through {name}, whose weights no optimizer updates",
        share=seen.share,
        bound=gain_without(seen.most + _beside(case, traced)),
        evidence=[
            measured("gradients nobody takes", adds, seen.weights),
            measured("backward", part, seen.share),
        ],
        place=place,
        module=seen.module,
        change=f"{_callee(written)}.requires_grad_(False)   # once, before training; or call it "
        "under torch.no_grad()",
        confidence="medium",
        doubt="if gradients go through it to a model that is trained, only a part is saved",
    )


def _gradients_called(case: Case, seen: Teacher) -> tuple[Place | None, str]:
    """Return where the model is called, and that line. Of the outermost modules of its class it is
    the one of about its size; for an inner module it is the function that calls its operators."""
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
    """Return the share of the host's time; on a GPU only as far as the GPU waits for the host."""
    if not case.step_ms:
        return 0.0
    share = _nodes(case, traced)
    if not case.on_gpu:
        return min(share + _pass(case, traced), 1.0)
    busy = case.busy or 0.0
    return 0.0 if busy >= SATURATED else min(share, 1 - busy)


def _bound(case: Case, traced: TraceMemory, share: float) -> float | None:
    """Return the bound. A constant for each node is no bound: a node took 9.5 µs in a service on a
    busy machine. What was measured beside the operators' work holds it, whatever a node costs."""
    if not share:
        return None
    if case.on_gpu:
        return gain_without(max(share, case.share_of("overhead")))
    return gain_without(_beside(case, traced))


def _beside(case: Case, traced: TraceMemory) -> float:
    """Return the largest share of a step on a CPU that recording can cost; on a GPU without the
    memory's part."""
    most = max(_nodes(case, traced), case.share_of("overhead"))
    return most if case.on_gpu else most + MAX_MEMORY_PASSES * _pass(case, traced)


def _nodes(case: Case, traced: TraceMemory) -> float:
    return traced.nodes * NODE_US / 1e3 / case.step_ms


def _pass(case: Case, traced: TraceMemory) -> float:
    """Return the time of the memory for one pass over what the graph keeps, as a share of the step.
    On a GPU the allocator keeps its blocks."""
    ceiling = case.device.ceiling("copy") if case.device is not None else None
    rate = ceiling.value if ceiling is not None and ceiling.value else DEFAULT_COPY_BYTES_S
    return traced.forward_bytes / rate * 1e3 / case.step_ms


def _memory(case: Case, traced: TraceMemory) -> float:
    peak = (
        device_peak_bytes(case) if case.on_gpu else case.memory.host_peak_bytes or traced.peak_bytes
    )
    return min(LIVE_GRAPHS * traced.forward_bytes / peak, 1.0) if peak else 0.0


def _claim(traced: TraceMemory, memory: float) -> str:
    nodes = units.significant(traced.nodes)
    said = f"nothing is trained, yet each step makes {nodes} autograd nodes"
    if memory < MIN_MEMORY_SHARE:
        return said
    return f"{said} and keeps {units.bytes_(traced.forward_bytes)} of activations"


def _evidence(case: Case, traced: TraceMemory, memory: float) -> list[Evidence]:
    kept = f"{units.bytes_(traced.forward_bytes)}, with the call before it "
    kept += f"{units.percent(memory)} of the peak"
    nodes = units.significant(traced.nodes)
    rows = [
        measured("autograd nodes", f"{nodes} a step, 0 run", traced.nodes),
        measured("kept when the model's call ends", kept, traced.forward_bytes),
    ]
    if overhead := case.share_of("overhead"):
        text = f"{units.percent(overhead)} of the step: the nodes' time is in it"
        rows.append(measured("Python, dispatch and small operators", text, overhead))
    if case.capture is not None:
        calls = sum(module.calls for module in case.capture.modules if not module.loss)
        rows.append(measured("the run", f"{calls} calls of models, no backward"))
    return rows


def _place(case: Case) -> tuple[Place | None, str]:
    """Return where the model is called, and the line as written."""
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
    """Return what the innermost call of a line calls: teacher for soft = teacher(x).softmax(-1)."""
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
    """Return the model whose gradients nobody uses, or None if there is none or it cannot be told:
    with several optimizers one may not have stepped in the traced steps, and ranks exchange
    gradients in buffers of their own."""
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
    """Return the shapes of matrices whose gradients are always added to, and of the others."""
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
    """Return the shape that a gradient is added to; () for any other site."""
    return _shape(site, 0) if site.op == "aten::add_" and site.inside(_ACCUMULATES) else ()


def _updated(case: Case) -> set[_Shape]:
    """Return every shape an operator between backward and forward was given, alone or in a list."""
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
    """Return the widest module around these weights without updated ones; "" if there is none."""
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
    """Return the share of the untraced backward that the traced one spends there, and the share of
    the whole backward. On a GPU, whose steps wait for more than their backward, return what is
    exposed of it."""
    gone = case.exposed(*sites)
    whole = share_of(case.times, "backward") if case.times.phases else 0.0
    spent = sum(site.host_ns for site in backward)
    if case.on_gpu or not whole or not spent:
        return gone, max(gone, whole)
    return whole * min(sum(site.host_ns for site in sites) / spent, 1.0), whole


MIN_GROWING_STEPS = 8
"""Steps that must be given one token a row more than the step before. Batches of texts whose
lengths differ seldom grow so twice in a row."""
MIN_GROWING_SHARE = 0.5
"""Share of the steps that must grow: a text that fills the model's window grows no longer."""
MIN_DECODING_SHARE = 0.05

DECODING_WITHOUT_CACHE = Rule(
    id="decoding-without-cache", family="kernels", budget="work", needs=("capture",)
)


def decoding_without_cache(case: Case) -> Iterator[Finding]:
    """A language model is called for each token with the whole text so far: it has no KV cache, or
    does not use the one it has."""
    if case.capture is None or case.capture.stepping != "call":
        return
    growing = growing_steps(case.steps)
    if len(growing) < MIN_GROWING_STEPS:
        return
    tokens, rows = mean(step.tokens for step in growing), mean(step.samples for step in growing)
    repeated = 1 - rows / tokens
    work = case.share_of("compute") + case.share_of("memory")
    share = repeated * work
    if share < MIN_DECODING_SHARE:
        return
    model, place = _decoding_called(case)
    length = tokens / rows
    evidence = [
        measured(
            "tokens a row",
            f"one more at each of {len(growing)} steps, {length:.0f} on average", length,
        ),
        measured("computed again", f"{units.percent(repeated)} of the tokens of a call", repeated),
    ]  # fmt: skip
    source = case.sources.get(place.file) if place is not None else None
    if place is not None and place.line and source is not None:
        evidence.append(read(f"line {place.line}", source.line(place.line).strip()))
    written = model is not None and model.generates and _calls_generate(case, place)
    yield make_finding(
        DECODING_WITHOUT_CACHE,
        claim=f"each token computes the whole text again: {length:.0f} tokens a row on average for "
        "a single new one",
        share=share,
        bound=gain_without(repeated * (1 - case.share_of("input"))),
        evidence=evidence,
        place=place,
        fix="kv-cache" if written else "",
        change=(fix_code(case, place, *uses_kv_cache(case)) if written else "") or _advice(model),
        confidence="high",
        doubt="" if written else "the calls of the loop have to be changed by hand",
    )


def growing_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that were given as many rows as the step before, and one token more in each;
    none if most steps of text were not."""
    known = [step for step in steps if step.detailed and step.tokens and step.samples]
    neighbours = [(a, b) for a, b in pairwise(known) if b.index == a.index + 1]
    growing = [
        b for a, b in neighbours if a.samples == b.samples and b.tokens - a.tokens == b.samples
    ]
    return growing if len(growing) >= MIN_GROWING_SHARE * len(neighbours) else []


def _decoding_called(case: Case) -> tuple[ModuleSeen | None, Place | None]:
    for model in models(case):
        place = place_at(model.place)
        if place is not None:
            source = case.sources.get(place.file)
            name = source.function_name(place.line or 0) if source is not None else ""
            return model, Place(file=place.file, line=place.line, function=name)
    return None, None


def _calls_generate(case: Case, place: Place | None) -> bool:
    source = case.sources.get(place.file) if place is not None else None
    if source is None or place is None or place.line is None:
        return False
    return any(last_name(call) == "generate" for call in source.calls_on_line(place.line))


def _advice(model: ModuleSeen | None) -> str:
    """Return the code of a loop that uses the cache of a model of transformers, or what a model of
    the program's own must do."""
    if model is not None and model.generates:
        code = (
            "cache = None\n"
            "for _ in range(new_tokens):\n"
            "    given = ids if cache is None else ids[:, -1:]\n"
            "    out = model(given, past_key_values=cache, use_cache=True)\n"
            "    cache = out.past_key_values\n"
            "    ids = torch.cat([ids, out.logits[:, -1:].argmax(-1)], dim=1)"
        )
    else:
        code = (
            "# in each attention layer: keep the keys and values of the tokens so far\n"
            "keys[:, :, position] = k  # made once, with room for the longest text\n"
            "values[:, :, position] = v\n"
            "# in the loop: call the model with the new token alone\n"
            "logits = model(ids[:, -1:], position)"
        )
    return code
