"""The size of a result depends on values on the device: masks, nonzero, unique."""

import ast
from collections.abc import Iterator, Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rules._waits import Waiting, often, quoted, wait_findings
from ridgeline.records.finding import Finding
from ridgeline.source.file import SourceFile
from ridgeline.source.waiting import Line, calls, masks

RULE = Rule(
    id="dynamic-shape-sync", family="synchronisation", budget="overhead", needs=("trace", "gpu")
)
_CALLS = {
    "aten::nonzero": frozenset({"nonzero", "where", "argwhere", "flatnonzero"}),
    "aten::masked_select": frozenset({"masked_select"}),
    "aten::_unique2": frozenset({"unique"}),
    "aten::unique_dim": frozenset({"unique"}),
    "aten::unique_consecutive": frozenset({"unique_consecutive"}),
    "aten::repeat_interleave": frozenset({"repeat_interleave"}),
    "aten::bincount": frozenset({"bincount"}),
    "aten::one_hot": frozenset({"one_hot"}),
}
_INDEXING = frozenset({"aten::index", "aten::index_put_", "aten::_index_put_impl_"})
_GENERIC = (
    "torch.where(mask, errors, 0).sum() / mask.sum()  # instead of errors[mask].mean()\n"
    "x = x.masked_fill(mask, 0.0)  # instead of x[mask] = 0.0"
)


def look(case: Case) -> Iterator[Finding]:
    yield from wait_findings(RULE, case, "dynamic", _lines, _claim, _change)


def _claim(wait: Waiting, lines: Sequence[Line]) -> str:
    what = quoted(lines, _operator(wait))
    return f"{what} has a size only the GPU knows: the host waits {often(wait.times)}"


def _lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    if wait.library:
        return ()
    named = next((_CALLS[op] for op in wait.ops if op in _CALLS), frozenset[str]())
    if wait.method in named:
        return calls(case.sources, wait.place, {wait.method})
    if _INDEXING.intersection(wait.ops):
        return masks(case.sources, wait.place)
    if found := calls(case.sources, wait.place, named):
        return found
    return masks(case.sources, wait.place)


def _operator(wait: Waiting) -> str:
    if _INDEXING.intersection(wait.ops):
        return "Indexing with a mask"
    op = next((op for op in wait.ops if op in _CALLS), wait.ops[0] if wait.ops else "An operator")
    return f"`{op.removeprefix('aten::').lstrip('_')}`"


def _change(case: Case, source: SourceFile | None, wait: Waiting, lines: Sequence[Line]) -> str:
    line = lines[0] if lines else None
    if line is None or source is None:
        return _GENERIC
    if "repeat_interleave" in line.expression and line.expression.endswith(")"):
        return (
            "total = ...  # the sum of the repeats, a number known on the host\n"
            f"{line.expression[:-1]}, output_size=total)"
        )
    if "one_hot" in line.expression and line.expression.endswith(")"):
        return (
            "classes = ...  # how many there are, a number\n"
            f"{line.expression[:-1]}, num_classes=classes)"
        )
    node = line.node
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Tuple):
        return _weighed(source, node)
    return _GENERIC


def _weighed(source: SourceFile, node: ast.Subscript) -> str:
    """Return code that sets, or averages, x[mask] without choosing elements."""
    values, mask = source.written(node.value), source.written(node.slice)
    above = next(source.parents(node), None)
    if isinstance(above, ast.Assign) and node in above.targets:
        new = above.value
        if isinstance(new, ast.Constant):
            told = f"{values} = {values}.masked_fill({mask}, {source.written(new)})"
        else:
            fits = isinstance(new, ast.Subscript) and source.written(new.slice) == mask
            given = source.written(new.value) if fits else "new"  # type: ignore[attr-defined]
            note = "" if given != "new" else f"  # new: a value for each of {values}"
            told = f"{values} = torch.where({mask}, {given}, {values}){note}"
        return f"{told}\n# instead of: {source.written(above)}"
    summed = f"torch.where({mask}, {values}, 0).sum()"
    return (
        f"{summed} / ({mask}).sum()  # instead of {values}[{mask}].mean()\n"
        f"{summed}  # instead of {values}[{mask}].sum()"
    )
