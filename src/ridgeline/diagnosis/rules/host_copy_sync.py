"""Small tensors are copied to the host each step: `.cpu()`, `.tolist()`, `.numpy()`."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rules._sync import Waiting, often, wait_finding, waiting
from ridgeline.records.finding import Finding
from ridgeline.source.on_device import held, without_reading
from ridgeline.source.waiting import Line, calls

RULE = Rule(
    id="host-copy-sync", family="synchronisation", budget="overhead", needs=("trace", "gpu")
)
NAMES = frozenset({"cpu", "tolist", "numpy", "to", "copy_"})


def look(case: Case) -> Iterator[Finding]:
    for wait in waiting(case, "small copy"):
        lines = host_lines(case, wait)
        asked = f"`{lines[0].expression}`" if lines and len(lines[0].expression) < 50 else ""
        size = units.bytes_(wait.bytes / max(wait.times, 1e-9))
        yield wait_finding(
            RULE,
            case,
            wait,
            claim=f"{asked or word(wait)} fetches {size} to the host and waits for it, "
            f"{often(wait.times)}",
            lines=lines,
            change=_change(case, wait, lines),
        )


def host_lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    """Calls that copy to the host; of `.to` those that name it."""
    if wait.library:
        return ()
    names = {wait.method} if wait.method in NAMES else NAMES - {"to", "copy_"}
    lines = calls(case.sources, wait.place, names)
    if wait.method == "to":
        return tuple(line for line in lines if "cpu" in line.expression) or lines
    return lines


def word(wait: Waiting) -> str:
    return f"`.{wait.method}()`" if wait.method in NAMES else "A copy"


def _change(case: Case, wait: Waiting, lines: tuple[Line, ...]) -> str:
    source = case.sources.get(wait.place.file) if wait.place is not None else None
    if not lines or source is None or not (kept := held(source, lines[0])):
        return (
            "history = []  # once, before the loop\n"
            "history.append(values.detach().clone())  # stays on the device\n"
            "history = torch.stack(history).cpu()  # once, after the loop"
        )
    return without_reading(source, lines[0]) or (
        f"value = {kept}  # stays on the device, instead of {lines[0].expression}\n"
        "on_host = value.cpu()  # where the host reads it: now and then, or after the loop"
    )
