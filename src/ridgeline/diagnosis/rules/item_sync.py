"""A number is read from the device each step: `.item()`, float(), int()."""

from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._sync import Waiting, often, per_step, wait_finding, waiting
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFile
from ridgeline.source.loops import function_around
from ridgeline.source.on_device import held, without_read_branch, without_reading
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
    if not case.on_gpu:
        yield from _would_wait(case)
        return
    for wait in waiting(case, "item"):
        lines = _lines(case, wait)
        asked = f"`{lines[0].expression}`" if lines and len(lines[0].expression) < 50 else ""
        yield wait_finding(
            RULE,
            case,
            wait,
            claim=f"{asked or _word(wait)} makes the host wait for the GPU {often(wait.times)}",
            lines=lines,
            change=_change(case.sources.get(wait.place.file) if wait.place else None, lines),
            of_library=_SCALER if any("grad_scaler.py:" in name for name in wait.via) else "",
        )


def _would_wait(case: Case) -> Iterator[Finding]:
    """Yield a finding for each line of a program on a CPU that would make the host wait in every
    step if the program ran on a GPU."""
    steps = max(case.sites.steps, 1)
    for one in case.capture.calls if case.capture is not None else ():
        if one.name != "item" or one.times < steps:
            continue
        source = case.sources.get(one.file)
        function = function_around(source, one.line) if source is not None else ""
        place = Place(file=one.file, line=one.line, function=function)
        lines = [line for line in read_numbers(case.sources, place) if line.number == one.line]
        asked = f"`{lines[0].expression}`" if lines else "`.item()`"
        yield make_finding(
            RULE,
            claim=f"{asked} reads a number {often(one.times / steps)}: on a GPU the host would "
            "wait for it",
            share=0.0,
            evidence=[
                Evidence(what="calls a step", text=per_step(one.times / steps), value=one.times)
            ],
            place=place,
            change=_change(source, lines),
            confidence="unmeasured",
            doubt="on a CPU the host does not wait",
        )


def _lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    if wait.library:
        return ()
    if wait.method and wait.method not in ("item", "round"):
        return calls(case.sources, wait.place, {wait.method})
    return read_numbers(case.sources, wait.place)


def _word(wait: Waiting) -> str:
    return "Reading a number" if wait.library or not wait.via else "`.item()`"


def _change(source: SourceFile | None, lines: Sequence[Line]) -> str:
    if not lines or source is None or not (kept := held(source, lines[0])):
        return _GENERIC
    generic = (
        f"value = {kept}  # a tensor: use it instead of {lines[0].expression}\n"
        "number = value.item()  # only where Python needs a number: now and then, or after the loop"
    )
    return without_read_branch(source, lines[0]) or without_reading(source, lines[0]) or generic
