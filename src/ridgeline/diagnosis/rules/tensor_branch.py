"""Python decides by a value on the device: `if`, `while`, `assert`, torch.equal, allclose."""

from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rules._sync import Waiting, often, wait_finding, waiting
from ridgeline.records.finding import Finding
from ridgeline.source.on_device import without_branch
from ridgeline.source.waiting import Line, branches, calls

RULE = Rule(id="tensor-branch", family="synchronisation", budget="overhead", needs=("trace", "gpu"))
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
