"""The optimizer's state takes most of a peak that is half of the device, or more."""

import ast
from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.memory_room import device_bytes, device_peak_bytes, fills_half
from ridgeline.diagnosis.rule import Rule, derived, make_finding, measured
from ridgeline.diagnosis.rules._user_code import located_call, place_at, user_calls
from ridgeline.records.finding import Evidence, Finding
from ridgeline.source.calls import SourceCall
from ridgeline.source.file import parsed_expression

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
RULE = Rule(id="optimizer-state", family="memory", budget="memory", needs=("capture", "gpu"))


def look(case: Case) -> Iterator[Finding]:
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
        RULE,
        claim=f"{main.name} keeps {units.bytes_(state)} of state, {units.percent(state / peak)} of "
        f"the peak{_of_device(case, peak)}",
        share=0.0,
        bound=1.0,
        memory=state / peak,
        evidence=_evidence(case, main.name, state, parameters, peak),
        place=located_call(case, call) or place_at(main.place),
        change=_change(call, main.name),
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


def _evidence(case: Case, name: str, state: int, parameters: int, peak: int) -> list[Evidence]:
    whole = device_bytes(case)
    of = f" of {units.bytes_(whole)}" if whole else ""
    kept = f"{STATE_TENSORS[name]} × the parameters: {units.bytes_(state)}"
    return [
        measured("parameters", units.bytes_(parameters), parameters),
        derived("state", kept, state),
        measured("peak", f"{units.bytes_(peak)}{of}", peak),
    ]


def _change(call: SourceCall | None, name: str) -> str:
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
