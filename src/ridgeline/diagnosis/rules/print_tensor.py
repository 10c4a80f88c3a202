"""A tensor on the device is printed, logged or put into a text each step."""

import ast
from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rules._waits import Waiting, often, per_step, wait_findings
from ridgeline.records.finding import Finding
from ridgeline.source.file import SourceFile
from ridgeline.source.waiting import Line, calls, now_and_then, printed

RULE = Rule(
    id="print-tensor", family="synchronisation", budget="overhead", needs=("trace", "gpu", "stacks")
)


def look(case: Case) -> Iterator[Finding]:
    yield from wait_findings(RULE, case, "print", _lines, _claim, _change)


def _claim(wait: Waiting, lines: Sequence[Line]) -> str:
    waits = per_step(round(wait.waits, 1))
    return (
        f"A tensor on the GPU is made into text {often(wait.times)}: {waits} waits for the GPU a "
        "step"
    )


def _lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    """Return the lines by the outermost function seen: print, info, format. f-strings have none."""
    for name in (name.split(":")[-1] for name in wait.via):
        if name in ("__repr__", "__format__", "__str__"):
            break
        found = printed(case.sources, wait.place, name) or calls(case.sources, wait.place, {name})
        if found:
            return found
    return printed(case.sources, wait.place)


def _change(case: Case, source: SourceFile | None, wait: Waiting, lines: Sequence[Line]) -> str:
    node = lines[0].node if lines else None
    statement = source.statement_of(node) if source is not None and node is not None else None
    note = "# of tensors x.tolist(), or x.item(): one copy, one wait"
    if source is None or not isinstance(statement, ast.Expr | ast.Assign):
        return f"{note}\n{now_and_then(source, node, 'print(values.tolist())')}"
    if isinstance(statement, ast.Assign):
        note += "; with all that uses the text"
    return f"{note}\n{now_and_then(source, statement, source.written(statement))}"
