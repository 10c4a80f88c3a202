"""The optimizer's state takes most of a peak that is half of the device, or more."""

import ast
from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.memory_room import device_bytes, fills_half, peak_bytes
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._source_lines import user_sources
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import Capture
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall, all_calls

COPIES = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2,
          "RMSprop": 1, "Adagrad": 1}  # fmt: skip
"""Tensors of a parameter's size and type that each keeps for it."""
RATES = {"Adam": "1e-3", "AdamW": "1e-3", "NAdam": "2e-3", "RAdam": "1e-3", "Adamax": "2e-3",
         "Adadelta": "1.0", "RMSprop": "1e-2", "Adagrad": "1e-2"}  # fmt: skip
"""Learning rate each has where none is given: Adafactor's own is another, 1e-2."""
KEPT = ("weight_decay", "maximize")
"""Arguments that mean the same to Adafactor."""
MOST = 0.4
"""Of the peak. Parameters, gradients and Adam's two states are a quarter each of what is not
activations: 40 % leaves activations and the rest a fifth."""

RULE = Rule(id="optimizer-state", family="memory", budget="memory", needs=("capture", "gpu"))


def look(case: Case) -> Iterator[Finding]:
    capture = case.capture
    peak = peak_bytes(case)
    if capture is None or not peak or not fills_half(case):
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
    yield make_finding(
        RULE,
        claim=f"{main.name} keeps {units.bytes_(state)} of state, {units.percent(state / peak)} of "
        f"the peak{_of_device(case, peak)}",
        share=0.0,
        bound=1.0,
        memory=state / peak,
        evidence=_evidence(case, main.name, state, parameters, peak),
        place=_place(case, call, main.place),
        change=_change(call, main.name),
        confidence="high" if call is not None else "medium",
        doubt="another optimizer may converge differently",
    )


def _of_device(case: Case, peak: int) -> str:
    """How full the device is, in the claim's words."""
    full = case.capture.out_of_memory if case.capture is not None else None
    if full is not None and full.on == "device":
        return ", and the program ran out of memory"
    whole = device_bytes(case)
    return f", which is {units.percent(peak / whole)} of the device" if whole else ""


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
    """Their own parameters, rate and decay; a default of theirs written out."""
    text = call.text if call is not None else f"torch.optim.{name}(model.parameters())"
    node = _parsed(text) or _parsed(f"torch.optim.{name}(model.parameters())")
    if node is None:
        return ""
    at, named = _placed(text, node), {k.arg: _written(text, k.value) for k in node.keywords}
    parameters = at[0] if at else named.get("params", "model.parameters()")
    rate = at[1] if len(at) > 1 else named.get("lr", RATES[name])
    decay = {"weight_decay": "1e-2"} if name == "AdamW" else {}
    kept = decay | {key: named[key] for key in KEPT if key in named}
    arguments = [parameters, f"lr={rate}", *(f"{key}={value}" for key, value in kept.items())]
    return f"torch.optim.Adafactor({', '.join(arguments)})  # or an 8-bit {name}"


def _placed(text: str, node: ast.Call) -> list[str]:
    """Arguments without a name, up to a starred one: what comes then has no known place."""
    found = []
    for one in node.args:
        if isinstance(one, ast.Starred):
            break
        found.append(_written(text, one))
    return found


def _written(text: str, node: ast.expr) -> str:
    """As in the source: `1e-3` stays what it is."""
    return ast.get_source_segment(text, node) or ast.unparse(node)


def _parsed(text: str) -> ast.Call | None:
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return node if isinstance(node, ast.Call) else None
