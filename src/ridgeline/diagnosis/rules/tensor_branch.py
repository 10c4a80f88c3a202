"""Python decides by a value on the device: `if`, `while`, `assert`, torch.equal, allclose."""

from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rules._sync import Waiting, often, wait_finding, waiting
from ridgeline.records.finding import Finding
from ridgeline.source.reading.waiting_lines import Line, branches, calls
from ridgeline.source.reading.without_branch import without_branch

RULE = Rule(
    id="tensor-branch",
    family="synchronisation",
    title="Python branches on a value that is on the device",
    budget="overhead",
    needs=("trace", "gpu"),
    looks_at="Operators `aten::is_nonzero`, `aten::equal` and `aten::allclose` with the runtime's "
    "waiting calls inside them, the line that asks, and the device's idle time after each.",
    threshold="1 % of the step lost. One check a step on a device that is busy costs less.",
    why="An `if` on a tensor needs its value on the host, so the host waits until the device has "
    "done everything queued before. The queue is empty then, and the device idles until the host "
    "has launched more. It also breaks the graph of torch.compile in two.",
    fix="""Let the device decide.

```python
scale = (limit / norm).clamp(max=1.0)      # instead of: if norm > limit: grad *= limit / norm
grad.mul_(scale)
alarms += peak > limit                     # instead of: if peak > limit: alarms += 1
x = torch.where(x > limit, limit, x)       # instead of: if (x > limit).any(): x[x > limit] = limit
```

A check for NaN: add the flags up on the device, look every 100 steps. `torch._assert_async(ok)`
checks without waiting. GradScaler skips steps with infinities by itself.""",
    wrong_when="The branch saves much more work than the wait costs, or the check is worth its "
    "price. Where several places wait close together, taking away one moves the wait to the next.",
)
_JUDGING = frozenset({"equal", "allclose", "max", "min", "sorted", "any", "all", "is_nonzero"})


def look(case: Case) -> Iterator[Finding]:
    for wait in waiting(case, "branch"):
        lines = _lines(case, wait)
        short = bool(lines) and len(lines[0].expression) < 50
        what = f"`{lines[0].expression}`" if short else "A condition on a tensor"
        yield wait_finding(
            RULE,
            case,
            wait,
            claim=f"{what} is decided on the host: it waits for the GPU {often(wait.times)}",
            lines=lines,
            change=_change(case, wait, lines),
        )


def _lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    if wait.library:
        return ()
    if wait.method in _JUDGING:
        return calls(case.sources, wait.place, {wait.method})
    return branches(case.sources, wait.place)


def _change(case: Case, wait: Waiting, lines: tuple[Line, ...]) -> str:
    source = case.sources.get(wait.place.file) if wait.place is not None else None
    rewritten = without_branch(source, lines[0]) if lines and source is not None else ""
    return rewritten or (
        "x = torch.where(norm > limit, x * (limit / norm), x)\n"
        "# instead of: if norm > limit: x = x * (limit / norm)"
    )
