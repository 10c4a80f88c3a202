"""Finds what fills the device's memory at its peak: activations, optimizer state, logits,
fragments."""

import ast
from collections.abc import Iterator
from math import prod

from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.memory_room import (
    MIN_LARGE_SHARE,
    device_bytes,
    device_peak_bytes,
    fills_half,
)
from ridgeline.diagnosis.rule import Rule, derived, gain_without, make_finding, measured
from ridgeline.diagnosis.rules._operators import TYPE_BYTES, peak_bytes, spent_ns, traced_peak
from ridgeline.diagnosis.rules._user_code import (
    fix_code,
    located_call,
    model_call,
    place_at,
    source_of,
    user_calls,
    user_sources,
    variable,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import OutOfMemory
from ridgeline.records.sites import OpSite
from ridgeline.records.step_work import ModuleMemory, SegmentCalls
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall, calls_at
from ridgeline.source.file import parsed_expression
from ridgeline.source.kept_tensors import GraphNames
from ridgeline.source.loops import BlockLoop, block_loops

MIN_ACTIVATION_SHARE = 0.6
"""Share of the peak from which activations are what to look at."""
MIN_BLOCK_CALLS = 4.0
"""Calls a step from which a module is a block of a stack. Fewer are not worth checkpointing one by
one."""
MIN_BLOCK_SHARE = 0.5
"""Share of the activations that the blocks must hold. Otherwise they are elsewhere."""
MIN_SAVED_SHARE = 0.05
_DOUBT = "checkpointing makes each step longer: it pays where it lets more fit"

ACTIVATION_PEAK = Rule(id="activation-peak", family="memory", budget="memory", needs=("gpu",))


def activation_peak(case: Case) -> Iterator[Finding]:
    """Activations own a peak that is near what the device has."""
    full = case.capture.out_of_memory if case.capture is not None else None
    peak = device_peak_bytes(case)
    if not fills_half(case):
        return
    held = case.traced_memory.forward_bytes if case.traced_memory is not None else 0.0
    if full is not None and full.on == "device" and not held:
        yield from _out_of_memory(case, full)
        return
    if not peak or held < MIN_ACTIVATION_SHARE * peak:
        return
    block = _block(case, held)
    saved = _saved(block) if block is not None else 0.0
    if block is not None and saved < MIN_SAVED_SHARE * peak:
        return
    loop = _loop(case)
    kind = f", {units.percent(block.held_bytes / held)} of them in {block.kind}" if block else ""
    yield make_finding(
        ACTIVATION_PEAK,
        claim=f"activations are {units.bytes_(held)} of a peak of {units.bytes_(peak)}{kind}",
        share=0.0,
        bound=1.0,
        memory=(saved or held) / peak,
        evidence=_activation_evidence(case, held, peak, block, saved),
        place=_activation_place(case, loop, block),
        module=block.kind if block is not None else "",
        fix="checkpointing",
        change=_activation_change(loop),
        confidence="high" if block is not None and loop is not None else "medium",
        doubt=_DOUBT,
    )


def _block(case: Case, held: float) -> ModuleMemory | None:
    """Return the outermost module that repeats and holds most of the activations."""
    modules = case.traced_memory.modules if case.traced_memory is not None else ()
    each = [_of_one_step(m, held) for m in modules]
    least = MIN_BLOCK_SHARE * held
    fit = [m for m in each if m.calls >= MIN_BLOCK_CALLS and m.held_bytes >= least]
    return min(fit, key=lambda m: (m.depth, -m.held_bytes), default=None)


def _of_one_step(module: ModuleMemory, held: float) -> ModuleMemory:
    """Return a module's memory of one step. If modules seem to hold more than the whole forward,
    the trace marks no steps, and their calls are of several."""
    part = min(held / module.held_bytes, 1.0) if module.held_bytes > 0 else 1.0
    return replace(
        module, calls=module.calls * part, held_bytes=module.held_bytes * part,
        last_bytes=module.last_bytes * part,
    )  # fmt: skip


def _saved(block: ModuleMemory) -> float:
    """Return what checkpointing saves: all but each block's result, which is the input of the next
    one, and the one block that is worked on."""
    return max(block.held_bytes - block.last_bytes - block.held_bytes / block.calls, 0.0)


def _activation_evidence(
    case: Case, held: float, peak: int, block: ModuleMemory | None, saved: float
) -> list[Evidence]:
    whole = device_bytes(case)
    of = f"; the device has {units.bytes_(whole)}" if whole else ""
    text = f"{units.bytes_(held)}, {units.percent(held / peak)} of the peak{of}"
    rows = [measured("kept for the backward", text, held)]
    if block is not None:
        each = units.bytes_(block.held_bytes / block.calls)
        text = f"{units.significant(block.calls)} calls a step, {each} each"
        rows.append(measured(block.kind, text, block.held_bytes))
        text = f"saves {units.bytes_(saved)}"
        again = _activation_again(case, block.kind)
        text += f", and {units.percent(again)} of the step is computed again" if again else ""
        rows.append(derived("checkpointing", text, saved))
    return rows


def _activation_again(case: Case, kind: str) -> float:
    """Return the share of the step in the forward of these blocks."""
    sites = [s for s in case.sites.ops if s.phase == "forward" and f"{kind}_" in s.module]
    return case.device_share(sum(site.device_ns for site in sites))


def _loop(case: Case) -> BlockLoop | None:
    """Return the loop that calls blocks one after the other; one in a `forward` comes first."""
    loops = [loop for source in user_sources(case) for loop in block_loops(source)]
    return min(loops, key=lambda loop: loop.function != "forward", default=None)


def _activation_place(
    case: Case, loop: BlockLoop | None, block: ModuleMemory | None
) -> Place | None:
    if loop is not None:
        return Place(file=loop.file, line=loop.line, function=loop.function)
    sites = [s for s in case.sites.ops if block is not None and f"{block.kind}_" in s.module]
    return next((s.place for s in sites if s.place is not None), None)


def _activation_change(loop: BlockLoop | None) -> str:
    if loop is None:
        return "x = checkpoint(block, x, use_reentrant=False)  # torch.utils.checkpoint"
    call = f"checkpoint({loop.block}, {loop.arguments}, use_reentrant=False)"
    return f"{loop.target} = {call}  # from torch.utils.checkpoint"


def _out_of_memory(case: Case, full: OutOfMemory) -> Iterator[Finding]:
    """Yield a finding for a program that ran out of memory before any step was traced. It names the
    lines that allocated what was alive; those in a `forward` count as activations."""
    mine = []
    for text, size, blocks in full.alive:
        place = place_at(text)
        source = source_of(case, place)
        if place and source is not None and source.function_name(place.line) == "forward":
            mine.append((place, size, blocks))
    held, whole = sum(size for _, size, _ in mine), full.allocated_bytes
    if not mine or not whole or held < MIN_ACTIVATION_SHARE * whole:
        return
    loop = _loop(case)
    yield make_finding(
        ACTIVATION_PEAK,
        claim=f"out of memory with {units.bytes_(held)} of {units.bytes_(whole)} in activations",
        share=0.0,
        bound=1.0,
        memory=held / whole,
        evidence=[
            measured(
                f"{place.file.rpartition('/')[2]}:{place.line}",
                f"{units.bytes_(size)} in {units.plural(blocks, 'block')}",
                size,
            )
            for place, size, blocks in mine[:4]
        ],
        place=_activation_place(case, loop, None) or replace(mine[0][0], function="forward"),
        fix="checkpointing",
        change=_activation_change(loop),
        confidence="high",
        doubt=_DOUBT,
    )


STATE_TENSORS = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2,
                 "RMSprop": 1, "Adagrad": 1}  # fmt: skip
"""Tensors of a parameter's size and type that each optimizer keeps for it."""
DEFAULT_RATES = {"Adam": "1e-3", "AdamW": "1e-3", "NAdam": "2e-3", "RAdam": "1e-3",
                 "Adamax": "2e-3", "Adadelta": "1.0", "RMSprop": "1e-2",
                 "Adagrad": "1e-2"}  # fmt: skip
"""Default learning rates. Adafactor's own is 1e-2."""
SHARED_OPTIONS = ("weight_decay", "maximize")
"""Arguments that mean the same to Adafactor."""
MIN_STATE_SHARE = 0.4
"""Share of the peak. Parameters, gradients and Adam's two states are a quarter each of what is not
activations: 40 % leaves a fifth to activations and the rest."""
OPTIMIZER_STATE = Rule(
    id="optimizer-state", family="memory", budget="memory", needs=("capture", "gpu")
)


def optimizer_state(case: Case) -> Iterator[Finding]:
    """The optimizer's state takes most of a peak that is half of the device, or more."""
    capture = case.capture
    peak = device_peak_bytes(case)
    if capture is None or not peak or not fills_half(case):
        return
    kinds = [o for o in capture.optimizers if STATE_TENSORS.get(o.name)]
    if not kinds:
        return
    main = max(kinds, key=lambda o: o.steps)
    parameters = sum(m.parameter_bytes for m in capture.modules if not m.loss and m.calls)
    state = STATE_TENSORS[main.name] * parameters
    if state < MIN_STATE_SHARE * peak or state > peak:
        return  # a larger state is sharded, or of frozen parameters: not all of it is there
    calls = user_calls(case, (main.name,))
    call = calls[0] if len(calls) == 1 else None
    yield make_finding(
        OPTIMIZER_STATE,
        claim=f"{main.name} keeps {units.bytes_(state)} of state, {units.percent(state / peak)} of "
        f"the peak{_of_device(case, peak)}",
        share=0.0,
        bound=1.0,
        memory=state / peak,
        evidence=_state_evidence(case, main.name, state, parameters, peak),
        place=located_call(case, call) or place_at(main.place),
        change=_state_change(call, main.name),
        confidence="high" if call is not None else "medium",
        doubt="another optimizer may converge differently",
    )


def _of_device(case: Case, peak: int) -> str:
    """Return how full the device is, for the claim."""
    full = case.capture.out_of_memory if case.capture is not None else None
    if full is not None and full.on == "device":
        return ", and the program ran out of memory"
    whole = device_bytes(case)
    return f", which is {units.percent(peak / whole)} of the device" if whole else ""


def _state_evidence(
    case: Case, name: str, state: int, parameters: int, peak: int
) -> list[Evidence]:
    whole = device_bytes(case)
    of = f" of {units.bytes_(whole)}" if whole else ""
    kept = f"{STATE_TENSORS[name]} × the parameters: {units.bytes_(state)}"
    return [
        measured("parameters", units.bytes_(parameters), parameters),
        derived("state", kept, state),
        measured("peak", f"{units.bytes_(peak)}{of}", peak),
    ]


def _state_change(call: SourceCall | None, name: str) -> str:
    """Return Adafactor with the program's own parameters, rate and decay. A default of its
    optimizer is written out."""
    text = call.text if call is not None else f"torch.optim.{name}(model.parameters())"
    node = _parsed(text) or _parsed(f"torch.optim.{name}(model.parameters())")
    if node is None:
        return ""
    at, named = _placed(text, node), {k.arg: _written(text, k.value) for k in node.keywords}
    parameters = at[0] if at else named.get("params", "model.parameters()")
    rate = at[1] if len(at) > 1 else named.get("lr", DEFAULT_RATES[name])
    decay = {"weight_decay": "1e-2"} if name == "AdamW" else {}
    kept = decay | {key: named[key] for key in SHARED_OPTIONS if key in named}
    arguments = [parameters, f"lr={rate}", *(f"{key}={value}" for key, value in kept.items())]
    return f"torch.optim.Adafactor({', '.join(arguments)})  # or an 8-bit {name}"


def _placed(text: str, node: ast.Call) -> list[str]:
    """Return the arguments without a name, up to a starred one: after it positions are unknown."""
    found = []
    for given in node.args:
        if isinstance(given, ast.Starred):
            break
        found.append(_written(text, given))
    return found


def _written(text: str, node: ast.expr) -> str:
    """Return an expression as in the source: `1e-3` stays what it is."""
    return ast.get_source_segment(text, node) or ast.unparse(node)


def _parsed(text: str) -> ast.Call | None:
    node = parsed_expression(text)
    return node if isinstance(node, ast.Call) else None


MIN_WORDS = 4096
"""Classes from which a loss counts as one over a vocabulary. ImageNet has 1,000."""
CHUNK, CHUNK_CPU = 1024, 256
"""Positions at a time. With fewer, the product with the head is inefficient."""
MIN_MEMORY_SHARE, MIN_MEMORY_SHARE_CPU = 0.1, 0.3
"""Share of the peak. A loss in parts is more code, so it must save more than a trifle; the memory
of a host is seldom what limits."""
_NAMES = {"double": "float64", "float": "float32", "c10::Half": "float16",
          "c10::BFloat16": "bfloat16"}  # fmt: skip
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
_LOSSES = ("cross_entropy", "log_softmax", "nll_loss", "CrossEntropyLoss", "criterion", "loss_fn",
           "loss_function", "loss")  # fmt: skip
_CASTS = ("aten::copy_", "aten::_to_copy", "aten::to")
_CODE_BYTES = {"5": 2, "6": 4, "7": 8, "15": 2}
"""Bytes by torch's number of a type: half, float, double, bfloat16."""

HUGE_LOGITS = Rule(id="huge-logits", family="memory", budget="memory", needs=("sites", "shapes"))


def huge_logits(case: Case) -> Iterator[Finding]:
    """A loss over a large vocabulary that holds all logits at once."""
    known = peak_bytes(case)
    peak = known or traced_peak(case, "cpu")
    forward = [
        s for s in case.sites.ops if s.op in ("aten::log_softmax", "aten::_log_softmax") and s.dims
    ]
    trained = any(s.op == "aten::_log_softmax_backward_data" for s in case.sites.ops)
    large = [s for s in forward if _words(s) >= MIN_WORDS]
    if not peak or not trained or not large:
        return
    site = max(large, key=lambda s: prod(s.dims[0]))
    one = prod(site.dims[0]) * _bytes(site)
    positions = prod(site.dims[0]) // _words(site)
    held = _held(case, site)
    chunk = CHUNK if case.on_gpu else CHUNK_CPU
    memory = held * max(1 - chunk / positions, 0.0) / peak
    if memory < (MIN_MEMORY_SHARE if case.on_gpu else MIN_MEMORY_SHARE_CPU):
        return
    casts = [s for s in case.sites.ops if s.op in _CASTS and _is(s, site)]
    called = calls_at(case.sources, site.place, _LOSSES)
    yield make_finding(
        HUGE_LOGITS,
        claim=f"the logits of {positions:,} positions × {_words(site):,} words take "
        f"{units.bytes_(one)}, and the loss holds {units.bytes_(held)} of them and their gradients "
        "at once",
        share=0.0,  # in parts the loss takes longer
        memory=memory,
        place=site.place,
        line=called[0].line if called else None,
        module=site.module,
        fix="chunked-cross-entropy",
        change=_logits_change(called[0] if called else None, chunk),
        confidence="high" if called and known else "medium",
        doubt="in parts the step becomes longer: the backward computes the logits again"
        + ("" if known else "; the trace counts memory from its own beginning"),
        evidence=(
            derived(
                "held by the loss", f"{units.bytes_(held)} of a peak of {units.bytes_(peak)}", held
            ),
            measured("logits", f"{positions:,} × {_words(site):,}, {_type(site)}"),
            *_logits_again(case, site),
            *_upcast(case, casts),
        ),
    )


def _bytes(site: OpSite) -> int:
    """Return the bytes of an element of the log-softmax: of the type it was asked for, else of its
    input's."""
    asked = site.concrete[2] if len(site.concrete) > 2 else ""
    return _CODE_BYTES.get(asked, TYPE_BYTES.get(site.types[0], 4))


def _held(case: Case, site: OpSite) -> float:
    """Return what lives at once in the backward: the log-softmax, its gradient and that of the
    logits. If the loss wants another type: the log-softmax, its copy and the copy's gradient."""
    own, size = _bytes(site), prod(site.dims[0])
    for other in case.sites.ops:
        if other.op == "aten::nll_loss_backward" and _is(other, site):
            copied = TYPE_BYTES.get(other.types[1], own)
            return float(size * (own + 2 * copied if copied != own else 3 * own))
    return float(size * 3 * own)


def _type(site: OpSite) -> str:
    """Return the type in torch's own word: bfloat16, not the C++ class."""
    told = site.types[0] if site.types else ""
    return _NAMES.get(told, told.removeprefix("c10::").lower())


def _logits_again(case: Case, site: OpSite) -> tuple[Evidence, ...]:
    """Return the head's product, which the backward of a loss in parts computes once more."""
    words = _words(site)
    heads = [
        s.device_ns if case.on_gpu else s.host_ns
        for s in case.sites.ops
        if s.op in _PRODUCTS and s.phase == "forward" and any(words in _flat(d) for d in s.dims)
    ]
    if not any(heads):
        return ()
    spent = case.work_s(max(heads))
    text = f"{units.seconds(spent)} a step for the head's product alone"
    return (measured("computed again", text, 1e3 * spent),)


def _upcast(case: Case, casts: list[OpSite]) -> tuple[Evidence, ...]:
    spent = spent_ns(case, casts)
    text = units.seconds(case.work_s(spent))
    return (measured("copies of them to another type", text),) if spent else ()


def _words(site: OpSite) -> int:
    """Return the size of the dimension that the softmax is over."""
    dims = site.dims[0]
    try:
        axis = int(site.concrete[1])
    except (IndexError, ValueError):
        axis = -1
    return int(dims[axis]) if dims and -len(dims) <= axis < len(dims) else 0


def _is(one: OpSite, site: OpSite) -> bool:
    return any(dims and prod(_flat(dims)) == prod(site.dims[0]) for dims in one.dims)


def _flat(dims: object) -> list[int]:
    return [d for d in dims if isinstance(d, int)] if isinstance(dims, list | tuple) else []


def _logits_change(call: SourceCall | None, chunk: int) -> str:
    """Return the loss in parts with the program's own head, hidden state and targets, if the call
    shows them."""
    head, hidden, targets = "head", "hidden", "targets"
    node = call.node if call is not None else None
    if node is not None and len(node.args) >= 2:
        first, second = node.args[0], node.args[1]
        if isinstance(second, ast.Name | ast.Attribute):
            targets = ast.unparse(second)
        if isinstance(first, ast.Call) and len(first.args) == 1:
            head, hidden = ast.unparse(first.func), ast.unparse(first.args[0])
    return (
        "def part(h, t):\n"
        f'    return F.cross_entropy({head}(h), t, reduction="sum")\n'
        "loss = sum(\n"
        "    checkpoint(part, h, t, use_reentrant=False)\n"
        f"    for h, t in zip({hidden}.split({chunk}), {targets}.split({chunk}))\n"
        f") / {targets}.numel()"
    )


MIN_SHARE = 0.01
MIN_DRIVER_CALLS = 1.0
"""Calls of the driver a step. A program that has settled makes none at all."""
MIN_UNUSED_SHARE = 0.3
"""Share of the reserved memory that is never used. Blocks are rounded up and cached, so a tenth or
two lies idle in every program."""
WAITS_BEHIND_FACTOR = 1.5
"""The most that goes with the driver's calls, as a multiple of their own time: each makes the host
wait for the device, and launches come late after it. 1.30 × was gained where the calls took 16 %.
"""

EXPANDABLE = (
    'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # before `import torch`'
)
LONGEST_FIRST = """\
# once, before the first step: memory for the longest batch, into which every other one fits
loss_fn(model(longest), targets).backward()
optimizer.zero_grad()"""

FRAGMENTATION = Rule(id="fragmentation", family="memory", budget="overhead", needs=("gpu",))


def fragmentation(case: Case) -> Iterator[Finding]:
    """Memory that the allocator holds and cannot use: reserved far above allocated, and calls of
    the driver for more while steps run."""
    traced = case.traced_memory
    segments = traced.segments if traced is not None else SegmentCalls()
    peak, reserved = device_peak_bytes(case), _reserved(case)
    unused = max(reserved - peak, 0) / reserved if reserved and peak else 0.0
    whole = device_bytes(case)
    asks = segments.calls >= MIN_DRIVER_CALLS
    large = bool(whole) and reserved >= MIN_LARGE_SHARE * whole
    retried = case.memory.retries > 0
    wasted = unused >= MIN_UNUSED_SHARE and (asks or large or retried)
    share = _share(case, segments) if asks else 0.0
    grows = traced is not None and traced.growth_bytes > 0
    grows = grows or (case.memory.growth_bytes_per_step or 0.0) > 0
    if grows or not (share >= MIN_SHARE or wasted):
        return  # a program whose own memory grows must ask for more
    yield make_finding(
        FRAGMENTATION,
        claim=_claim(segments, unused, reserved, share >= MIN_SHARE),
        share=share if share >= MIN_SHARE else 0.0,
        bound=gain_without(WAITS_BEHIND_FACTOR * share) if share >= MIN_SHARE else 1.0,
        memory=unused if wasted else 0.0,
        evidence=_fragmentation_evidence(case, segments, peak, reserved),
        place=_fragmentation_place(case, segments.place),
        fix="expandable-segments" if wasted else "",
        change=_fragmentation_change(case) if wasted else LONGEST_FIRST,
        confidence="high" if asks and unused >= MIN_UNUSED_SHARE else "medium",
    )


def _fragmentation_change(case: Case) -> str:
    fix = variable("expandable-segments", "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    return fix_code(case, None, fix) or EXPANDABLE


def _reserved(case: Case) -> int:
    traced = case.traced_memory
    in_trace = traced.reserved_bytes if traced is not None and traced.device != "cpu" else 0
    return case.memory.device_reserved_bytes or max(in_trace, 0)


def _share(case: Case, segments: SegmentCalls) -> float:
    """Return the GPU's idle time for driver calls, or the host's time in those calls if the GPU
    waits for the host anyway. Tracing does not lengthen the driver's own time."""
    busy = case.busy or 0.0
    calls = 0.0 if busy >= SATURATED else min(case.device_share(segments.host_ns), 1 - busy)
    return max(case.idle("allocator"), calls)


def _claim(segments: SegmentCalls, unused: float, reserved: int, costs: bool) -> str:
    calls = f"the driver is asked for memory {units.significant(segments.calls)} times a step"
    lies = f"{units.percent(unused)} of the {units.bytes_(reserved)} torch holds is never used"
    if costs and unused >= MIN_UNUSED_SHARE:
        return f"{calls}, and {lies}"
    return calls if costs else lies


def _fragmentation_evidence(
    case: Case, segments: SegmentCalls, peak: int, reserved: int
) -> list[Evidence]:
    rows = []
    if segments.calls:
        seconds = units.seconds(segments.host_ns / 1e9)
        text = f"{units.significant(segments.calls)} a step, {seconds} a traced step"
        rows.append(measured("cudaMalloc and cudaFree", text, segments.calls))
    if reserved and peak:
        text = f"{units.bytes_(reserved)} reserved, {units.bytes_(peak)} allocated at the peak"
        rows.append(measured("memory", text, reserved - peak))
    if idle := case.idle("allocator"):
        rows.append(measured("GPU idle for it", units.percent(idle), idle))
    if retries := case.memory.retries:
        text = f"{retries} allocations freed cached blocks and tried again"
        rows.append(measured("retries", text, retries))
    return rows


def _fragmentation_place(case: Case, measured_at: Place | None) -> Place | None:
    """Return the model's call in the function that asks, if its source can be read."""
    source = source_of(case, measured_at)
    if measured_at is None or source is None:
        return measured_at or model_call(case)
    scope = source.scope(measured_at.line)
    calls = GraphNames(source).model_calls(scope)
    looped = sorted(calls, key=lambda call: (-source.loops(call), call.lineno))
    line = looped[0].lineno if looped else measured_at.line
    return Place(file=measured_at.file, line=line, function=measured_at.function)
