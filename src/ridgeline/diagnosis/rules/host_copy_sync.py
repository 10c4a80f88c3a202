"""Small tensors are copied to the host each step: `.cpu()`, `.tolist()`, `.numpy()`."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rules._sync import Waiting, often, wait_finding, waiting
from ridgeline.records.finding import Finding
from ridgeline.source.reading.on_device import held, without_reading
from ridgeline.source.reading.waiting_lines import Line, calls

RULE = Rule(
    id="host-copy-sync",
    family="synchronisation",
    title="Small tensors are copied to the host while the device works",
    budget="overhead",
    needs=("trace", "gpu"),
    looks_at="Copies from the device under 128 KiB that the host waits for, the line that asks, "
    "and the device's idle time after each.",
    threshold="1 % of the step lost. Under 128 KiB a copy is shorter than the wait for it: the "
    "wait costs, not the bytes. From there on see results-to-host.",
    why="`.cpu()` into ordinary memory returns when the data is there, so the host waits until the "
    "device has done everything queued before. Then the queue is empty, and the device idles until "
    "the host has launched more.",
    fix="""Keep small results on the device and copy them together, after the loop or every so many
steps.

```python
history.append(norm.detach())               # instead of: norm.cpu()
...
history = torch.stack(history).cpu()        # one copy, one wait
```

Where the host needs them soon, but not at once: copy into pinned memory, and read a step later.

```python
host = torch.empty(norm.shape, dtype=norm.dtype, pin_memory=True)
host.copy_(norm, non_blocking=True)
copied = torch.cuda.Event()
copied.record()                             # copied.synchronize() before host is read
```""",
    wrong_when="The host decides by these values what to do next. Where several places wait close "
    "together, taking away one of them moves the wait to the next.",
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
