"""The optimizer's state takes most of a memory that is short."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rule import Rule, found
from ridgeline.diagnose.rules._memory import device_bytes, peak_bytes, short_of_memory
from ridgeline.diagnose.rules._memory_lines import user_sources
from ridgeline.diagnose.source.calls import SourceCall, all_calls
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import Capture
from ridgeline.records.trace import Place

COPIES = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2,
          "RMSprop": 1, "Adagrad": 1}  # fmt: skip
"""Tensors of a parameter's size and type that each keeps for it."""
MOST = 0.4
"""Of the peak. Parameters, gradients and Adam's two states are a quarter each of what is not
activations: 40 % leaves activations and the rest a fifth."""

RULE = Rule(
    id="optimizer-state",
    family="memory",
    title="The optimizer's state fills the device",
    budget="memory",
    needs=("capture", "gpu"),
    looks_at=(
        "The optimizer's kind and the bytes of the model's parameters, against the peak of the "
        "device's memory: Adam keeps two tensors of a parameter's size for each."
    ),
    threshold=(
        "The state is at least 40 % of the peak, and memory is short: the program ran out of it, "
        "or its peak is half of the device, so that nothing can be doubled."
    ),
    why=(
        "Adam keeps a running mean of each gradient and of its square: twice the parameters' "
        "memory, there all the time, used once a step. Next to a large model it is what decides "
        "whether a larger batch or model fits."
    ),
    fix=(
        "Keep less of it, or keep it elsewhere:\n\n```python\n"
        "torch.optim.Adafactor(model.parameters())            # a row and a column a matrix\n"
        "bitsandbytes.optim.AdamW8bit(model.parameters())     # 8 bits instead of 32\n"
        "ZeroRedundancyOptimizer(params, torch.optim.AdamW)   # each rank keeps a part\n```\n\n"
        "FSDP divides it over the ranks, too."
    ),
    wrong_when=(
        "Memory is not what holds the program back: then state costs nothing. Another optimizer "
        "may converge differently."
    ),
)


def look(case: Case) -> Iterator[Finding]:
    capture = case.capture
    peak = peak_bytes(case)
    if capture is None or not peak or not short_of_memory(case):
        return
    kinds = [o for o in capture.optimizers if COPIES.get(o.name)]
    if not kinds:
        return
    main = max(kinds, key=lambda o: o.steps)
    parameters = _parameters(capture)
    state = COPIES[main.name] * parameters
    if state < MOST * peak or state > peak:  # sharded, or of frozen parameters: not all there
        return
    call = _made(case, main.name)
    yield found(
        RULE,
        claim=f"{main.name} keeps {units.bytes_(state)} of state, {units.percent(state / peak)} of "
        f"the peak, and memory is short",
        share=0.0,
        bound=1.0,
        memory=state / peak,
        evidence=_evidence(case, main.name, state, parameters, peak),
        place=_place(case, call, main.place),
        change=_change(call, main.name),
        confidence="high" if call is not None else "medium",
        doubt="another optimizer may converge differently",
    )


def _parameters(capture: Capture) -> int:
    return sum(m.parameter_bytes for m in capture.modules if not m.loss and m.calls)


def _evidence(
    case: Case, name: str, state: int, parameters: int, peak: int
) -> tuple[Evidence, ...]:
    whole = device_bytes(case)
    of = f" of {units.bytes_(whole)}" if whole else ""
    return (
        Evidence(what="parameters", text=units.bytes_(parameters), value=float(parameters)),
        Evidence(
            what="state",
            text=f"{COPIES[name]} × the parameters: {units.bytes_(state)}",
            value=float(state),
            source="derived",
        ),
        Evidence(what="peak", text=f"{units.bytes_(peak)}{of}", value=float(peak)),
    )


def _made(case: Case, name: str) -> SourceCall | None:
    calls = [call for source in user_sources(case) for call in all_calls(source, (name,))]
    return calls[0] if len(calls) == 1 else None


def _place(case: Case, call: SourceCall | None, stepped: str) -> Place | None:
    if call is not None:
        source = case.sources.get(call.file)
        scope = source.scope(call.line) if source is not None else None
        return Place(file=call.file, line=call.line, function=str(getattr(scope, "name", "")))
    file, _, line = stepped.rpartition(":")
    return Place(file=file, line=int(line)) if line.isdigit() else None


def _change(call: SourceCall | None, name: str) -> str:
    text = call.text if call is not None else f"torch.optim.{name}(model.parameters())"
    inside = text.partition("(")[2].partition(",")[0].rstrip(")")
    arguments = f"{inside})" if inside.endswith("(") else inside
    return f"torch.optim.Adafactor({arguments})  # or an 8-bit {name}"
