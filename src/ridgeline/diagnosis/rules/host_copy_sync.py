"""Small tensors are copied to the host each step: `.cpu()`, `.tolist()`, `.numpy()`."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rules._waits import Waiting, often, quoted, wait_findings
from ridgeline.records.finding import Finding
from ridgeline.source.file import SourceFile
from ridgeline.source.on_device import tensor_read, without_reading
from ridgeline.source.waiting import Line, calls

RULE = Rule(
    id="host-copy-sync", family="synchronisation", budget="overhead", needs=("trace", "gpu")
)
NAMES = frozenset({"cpu", "tolist", "numpy", "to", "copy_"})


def look(case: Case) -> Iterator[Finding]:
    yield from wait_findings(RULE, case, "small copy", host_lines, _claim, _change)


def _claim(wait: Waiting, lines: Sequence[Line]) -> str:
    size = units.bytes_(bytes_each(wait))
    what = quoted(lines, method_name(wait))
    return f"{what} fetches {size} to the host and waits for it, {often(wait.times)}"


def host_lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    """Return the calls that copy to the host. Of calls of `.to`, those that name the host count."""
    if wait.library:
        return ()
    names = {wait.method} if wait.method in NAMES else NAMES - {"to", "copy_"}
    lines = calls(case.sources, wait.place, names)
    if wait.method == "to":
        return tuple(line for line in lines if "cpu" in line.expression) or lines
    return lines


def method_name(wait: Waiting) -> str:
    return f"`.{wait.method}()`" if wait.method in NAMES else "A copy"


def bytes_each(wait: Waiting) -> float:
    return wait.bytes / max(wait.times, 1e-9)


def _change(case: Case, source: SourceFile | None, wait: Waiting, lines: Sequence[Line]) -> str:
    if not lines or source is None or not (kept := tensor_read(source, lines[0])):
        return (
            "history = []  # once, before the loop\n"
            "history.append(values.detach().clone())  # stays on the device\n"
            "history = torch.stack(history).cpu()  # once, after the loop"
        )
    return without_reading(source, lines[0]) or (
        f"value = {kept}  # stays on the device, instead of {lines[0].expression}\n"
        "on_host = value.cpu()  # where the host reads it: now and then, or after the loop"
    )
