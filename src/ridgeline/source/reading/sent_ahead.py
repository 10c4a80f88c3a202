"""Copies to the device made a batch ahead, on a stream of their own, for a loop as it is."""

import ast

from ridgeline.source.reading.sources import Source
from ridgeline.source.reading.statements import statement_of, written
from ridgeline.source.reading.waiting_lines import Line, called

AHEAD = """\
def ahead(batches):  # each a list of tensors in pinned memory
    beside, ready = torch.cuda.Stream(), None
    for batch in batches:
        with torch.cuda.stream(beside):
            following = [part.to(device, non_blocking=True) for part in batch]
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(beside)
        for part in following:
            part.record_stream(torch.cuda.current_stream())
        ready = following
    if ready is not None:
        yield ready
"""
_COUNTED = """\
beside = torch.cuda.Stream()

def sent({count}):
    with torch.cuda.stream(beside):
        return {call}

following = sent({first})
for {count} in {over}:
    torch.cuda.current_stream().wait_stream(beside)
    {into} = following
    {into}.record_stream(torch.cuda.current_stream())
    following = sent({count} + 1) if {count} + 1 < {end} else None
    ...  # the rest of the step"""


def sent_ahead(source: Source | None, line: Line | None, call: str) -> str:
    """`call`: the copy as it should be asked for. A loop over `range` sends the next round's; one
    over batches goes over `ahead(batches)`."""
    node = line.node if line is not None else None
    if source is None or node is None:
        return f"{AHEAD}\nfor inputs, targets in ahead(loader):\n    ...  # the step"
    loop = next((a for a in source.parents(node) if isinstance(a, ast.For)), None)
    if loop is None:
        return f"{AHEAD}\nfor inputs, targets in ahead(loader):\n    ...  # the step"
    return _counted(source, node, loop, call) or _over_batches(source, node, loop)


def _counted(source: Source, node: ast.AST, loop: ast.For, call: str) -> str:
    statement = statement_of(source, node)
    over = loop.iter
    if not isinstance(loop.target, ast.Name) or not isinstance(statement, ast.Assign):
        return ""
    if statement.value is not node or not isinstance(statement.targets[0], ast.Name):
        return ""
    if not isinstance(over, ast.Call) or called(over) != "range" or len(over.args) not in (1, 2):
        return ""
    count, into = loop.target.id, statement.targets[0].id
    used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    if count not in used or used & (_set_in(loop) - {count}):
        return ""
    first = written(source, over.args[0]) if len(over.args) == 2 else "0"
    end = written(source, over.args[-1])
    return _COUNTED.format(
        count=count, call=call, first=first, over=written(source, over), into=into, end=end
    )


def _over_batches(source: Source, node: ast.AST, loop: ast.For) -> str:
    """`for images, labels in loader`, or the same in an `enumerate`."""
    wrapped = isinstance(loop.iter, ast.Call) and called(loop.iter) in ("enumerate", "tqdm")
    over = loop.iter.args[0] if wrapped and loop.iter.args else loop.iter  # type: ignore[attr-defined]
    inner = written(source, over)
    around = written(source, loop.iter)
    batches = around.replace(inner, f"ahead({inner})", 1) if wrapped else f"ahead({inner})"
    gone = written(source, node)
    return (
        f"{AHEAD}\nfor {written(source, loop.target)} in {batches}:\n"
        f"    ...  # the step, without {gone}"
    )


def _set_in(loop: ast.For) -> set[str]:
    return {
        n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
