"""Python decides by a value on the device: `if`, `while`, `assert`, torch.equal, allclose."""

from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rules._waits import Waiting, often, quoted, wait_findings
from ridgeline.records.finding import Finding
from ridgeline.source.file import SourceFile
from ridgeline.source.on_device import without_branch
from ridgeline.source.waiting import Line, branches, calls

RULE = Rule(id="tensor-branch", family="synchronisation", budget="overhead", needs=("trace", "gpu"))
_JUDGING = frozenset({"equal", "allclose", "max", "min", "sorted", "any", "all", "is_nonzero"})


def look(case: Case) -> Iterator[Finding]:
    yield from wait_findings(RULE, case, "branch", _lines, _claim, _change)


def _claim(wait: Waiting, lines: Sequence[Line]) -> str:
    what = quoted(lines, "A condition on a tensor")
    return f"{what} is decided on the host: it waits for the GPU {often(wait.times)}"


def _lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    if wait.library:
        return ()
    if wait.method in _JUDGING:
        return calls(case.sources, wait.place, {wait.method})
    return branches(case.sources, wait.place)


def _change(case: Case, source: SourceFile | None, wait: Waiting, lines: Sequence[Line]) -> str:
    rewritten = without_branch(source, lines[0]) if lines and source is not None else ""
    return rewritten or (
        "x = torch.where(norm > limit, x * (limit / norm), x)\n"
        "# instead of: if norm > limit: x = x * (limit / norm)"
    )
