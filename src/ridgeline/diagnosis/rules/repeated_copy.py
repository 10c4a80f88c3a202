"""The same tensor is copied to the device every step."""

import ast
from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._copies import (
    LEAST,
    Sent,
    evidence,
    holds_up,
    named,
    repeated,
    sent,
)
from ridgeline.diagnosis.rules._launch import bound_ahead
from ridgeline.records.finding import Evidence, Finding
from ridgeline.source.file import SourceFile
from ridgeline.source.waiting import Line
from ridgeline.units import bytes_, percent

RULE = Rule(
    id="repeated-copy", family="transfer", budget="transfer", needs=("trace", "gpu", "stacks")
)


def look(case: Case) -> Iterator[Finding]:
    for one in sent(case):
        if one.line is None or not repeated(case, one):
            continue
        share = holds_up(case, one)
        if share < LEAST:
            continue
        kind = "not pinned" if one.pageable else "pinned"
        yield make_finding(
            RULE,
            claim=f"{named(one)} moves the same {bytes_(one.bytes)} to the GPU every step: "
            f"{percent(share)} of it",
            share=share,
            bound=bound_ahead(case, share),
            evidence=[
                *evidence(case, one, share),
                Evidence(
                    what="what is copied",
                    text=f"{one.line.on or one.line.expression}: nothing in the loop sets it; its "
                    f"memory is {kind}",
                    source="read",
                ),
            ],
            place=one.place,
            line=one.line.number,
            change=_change(case, one),
            confidence="high",
        )


def _change(case: Case, one: Sent) -> str:
    assert one.line is not None
    on, call, text = one.line.on, one.line.expression, one.line.text
    if on.startswith("self.") and on.count(".") == 1:
        source = case.sources.get(one.place.file) if one.place is not None else None
        made = _set_in_init(source, one.line, on.removeprefix("self.")) if source else None
        first = f"{on} = {call}  # copied the first time alone: then it is there"
        if made is not None:
            first = f"{made[1]}  # line {made[0]}: moves with model.to(device)"
        return f"{first}\n{text.replace(call, on, 1)}"
    if on.isidentifier() and on != "torch":
        return f"{on} = {call}  # once, before the loop\n{text.replace(call, on, 1)}"
    return f"constant = {call}  # once, before the loop\n{text.replace(call, 'constant', 1)}"


def _set_in_init(source: SourceFile, line: Line, name: str) -> tuple[int, str] | None:
    """Where a module sets it, and that line with a buffer instead; None for other classes."""
    above = source.parents(line.node) if line.node is not None else iter(())
    home = next((a for a in above if isinstance(a, ast.ClassDef)), None)
    if home is None or not any("Module" in ast.unparse(base) for base in home.bases):
        return None
    for node in ast.walk(home):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"self.{name}":
            value = source.written(node.value)
            return node.lineno, f'self.register_buffer("{name}", {value}, persistent=False)'
    return None
