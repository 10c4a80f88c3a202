"""The same tensor is copied to the device every step."""

import ast
from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, read
from ridgeline.diagnosis.rules._launch import bound_ahead
from ridgeline.diagnosis.rules._user_code import source_of
from ridgeline.diagnosis.rules._waits import MIN_SHARE, evidence, holds_up, named, repeated, sent
from ridgeline.records.finding import Finding
from ridgeline.source.file import SourceFile
from ridgeline.source.waiting import Line
from ridgeline.units import bytes_, percent

RULE = Rule(
    id="repeated-copy", family="transfer", budget="transfer", needs=("trace", "gpu", "stacks")
)


def look(case: Case) -> Iterator[Finding]:
    for copies in sent(case):
        line = copies.line
        if line is None or not repeated(case, copies):
            continue
        share = holds_up(case, copies)
        if share < MIN_SHARE:
            continue
        kind = "not pinned" if copies.pageable else "pinned"
        text = f"{line.on or line.expression}: nothing in the loop sets it; its memory is {kind}"
        yield make_finding(
            RULE,
            claim=f"{named(copies)} moves the same {bytes_(copies.bytes)} to the GPU every step: "
            f"{percent(share)} of it",
            share=share,
            bound=bound_ahead(case, share),
            evidence=[*evidence(case, copies, share), read("what is copied", text)],
            place=copies.place,
            line=line.number,
            change=_change(source_of(case, copies.place), line),
            confidence="high",
        )


def _change(source: SourceFile | None, line: Line) -> str:
    on, call, text = line.on, line.expression, line.text
    if on.startswith("self.") and on.count(".") == 1:
        made = _set_in_init(source, line, on.removeprefix("self.")) if source else None
        first = f"{on} = {call}  # copied the first time alone: then it is there"
        if made is not None:
            first = f"{made[1]}  # line {made[0]}: moves with model.to(device)"
        return f"{first}\n{text.replace(call, on, 1)}"
    if on.isidentifier() and on != "torch":
        return f"{on} = {call}  # once, before the loop\n{text.replace(call, on, 1)}"
    return f"constant = {call}  # once, before the loop\n{text.replace(call, 'constant', 1)}"


def _set_in_init(source: SourceFile, line: Line, name: str) -> tuple[int, str] | None:
    """Return the line where a module sets an attribute, and that line with a buffer instead. Return
    None for other classes."""
    above = source.parents(line.node) if line.node is not None else iter(())
    home = next((a for a in above if isinstance(a, ast.ClassDef)), None)
    if home is None or not any("Module" in ast.unparse(base) for base in home.bases):
        return None
    for node in ast.walk(home):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"self.{name}":
            value = source.written(node.value)
            return node.lineno, f'self.register_buffer("{name}", {value}, persistent=False)'
    return None
