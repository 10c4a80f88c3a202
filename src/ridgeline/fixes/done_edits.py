"""Writes the edits that follow from what a fix did: a keyword that a call got, a setting, a model
that was compiled. Other fixes write their own."""

from ridgeline.fixes.compiling import compile_edits, step_mark_edits
from ridgeline.fixes.fix import Source
from ridgeline.records.edit import Edit, Import, Keyword, Top
from ridgeline.records.reason_codes import Done
from ridgeline.records.trial import Applied

_MODES_WITH_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that use CUDA graphs: each step has to be marked."""


def edits_of_done(applied: Applied, source: Source, why: str) -> tuple[Edit, ...]:
    """Return the edits for all targets; `why` is the comment at the lines."""
    codes = {target.done.code for target in applied.targets}
    if Done.COMPILED in codes:
        edits = compile_edits(applied, source, why)
        modes = {target.done.facts.get("mode") for target in applied.targets}
        marks = modes & set(_MODES_WITH_GRAPHS)
        return edits + step_mark_edits(applied, source) if marks else edits
    if Done.SETTING in codes:
        setting = str(applied.targets[0].done.facts["statement"])
        top = Top(file="", where="after imports", text=setting, why=why)
        return Import(file="", text="import torch"), top
    return _keywords(applied, why)


def _keywords(applied: Applied, why: str) -> tuple[Edit, ...]:
    edits = []
    for target in applied.targets:
        place, facts = target.place, target.done.facts
        if place is not None and place.line is not None:
            call, option, value = str(facts["call"]), str(facts["option"]), repr(facts["value"])
            edits.append(
                Keyword(
                    file=place.file, line=place.line, call=call, name=option, value=value, why=why
                )
            )
    return tuple(dict.fromkeys(edits))
