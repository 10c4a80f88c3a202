"""A number is read from the device each step: `.item()`, float(), int()."""

from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.diagnosis.rules._user_code import located
from ridgeline.diagnosis.rules._waits import Waiting, often, per_step, quoted, wait_findings
from ridgeline.records.finding import Finding
from ridgeline.source.file import SourceFile
from ridgeline.source.on_device import tensor_read, without_read_branch, without_reading
from ridgeline.source.waiting import Line, calls, read_numbers

RULE = Rule(id="item-sync", family="synchronisation", budget="overhead", needs=("trace",))
_GENERIC = """\
total = torch.zeros((), device=device)  # once, before the loop
total += loss.detach()  # stays on the device
if step % 100 == 99:
    print(total.item() / 100)  # one wait in 100 steps
    total.zero_()"""
_SCALER = """\
optimizer = torch.optim.AdamW(model.parameters(), fused=True)  # yours, with fused=True: the
# scaler then leaves it to the GPU to skip a step (Adam, AdamW, SGD, Adagrad).
# bfloat16 needs no scaler at all."""


def look(case: Case) -> Iterator[Finding]:
    if case.on_gpu:
        yield from wait_findings(RULE, case, "item", _lines, _claim, _change, _library_change)
    else:
        yield from _would_wait(case)


def _claim(wait: Waiting, lines: Sequence[Line]) -> str:
    asked = "Reading a number" if wait.library or not wait.via else "`.item()`"
    return f"{quoted(lines, asked)} makes the host wait for the GPU {often(wait.times)}"


def _library_change(wait: Waiting) -> str:
    return _SCALER if any("grad_scaler.py:" in name for name in wait.via) else ""


def _would_wait(case: Case) -> Iterator[Finding]:
    """Yield a finding for each line of a program on a CPU that would make the host wait in every
    step if the program ran on a GPU."""
    steps = max(case.sites.steps, 1)
    for call in case.capture.calls if case.capture is not None else ():
        if call.name != "item" or call.times < steps:
            continue
        place = located(case, call.file, call.line)
        numbers = read_numbers(case.sources, place)
        lines = [line for line in numbers if line.number == call.line]
        asked = f"`{lines[0].expression}`" if lines else "`.item()`"
        each = call.times / steps
        yield make_finding(
            RULE,
            claim=f"{asked} reads a number {often(each)}: on a GPU the host would wait for it",
            share=0.0,
            evidence=[measured("calls a step", per_step(each), call.times)],
            place=place,
            change=_change(case, case.sources.get(call.file), None, lines),
            confidence="unmeasured",
            doubt="on a CPU the host does not wait",
        )


def _lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    if wait.library:
        return ()
    if wait.method and wait.method not in ("item", "round"):
        return calls(case.sources, wait.place, {wait.method})
    return read_numbers(case.sources, wait.place)


def _change(
    case: Case, source: SourceFile | None, wait: Waiting | None, lines: Sequence[Line]
) -> str:
    if not lines or source is None or not (kept := tensor_read(source, lines[0])):
        return _GENERIC
    generic = (
        f"value = {kept}  # a tensor: use it instead of {lines[0].expression}\n"
        "number = value.item()  # only where Python needs a number: now and then, or after the loop"
    )
    return without_read_branch(source, lines[0]) or without_reading(source, lines[0]) or generic
