"""The code of a finding, made from the edits of its fix.

A patch is made from the same edits, so that a finding and a patch of the same fix agree.
"""

import ast
import difflib
from collections import defaultdict
from pathlib import PurePath
from textwrap import dedent

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._user_code import models, place_at, user_files
from ridgeline.fixes.fix import EditByHand, find_fix
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Fact, Reason
from ridgeline.records.facts import Place as UserLine
from ridgeline.records.reason_codes import Done
from ridgeline.records.run import ModuleSeen
from ridgeline.records.trace import Place
from ridgeline.records.trial import Applied, FixTarget

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.Import)


def _applied(fix: str, done: Done, place: Place | None = None, **facts: Fact) -> Applied:
    """Return what a trial would record of a fix that it applied at a place."""
    line = UserLine(place.file, place.line) if place is not None else None
    target = FixTarget(done=Reason(done.value, facts), place=line)
    return Applied(fix=fix, targets=(target,))


def option(fix: str, place: Place, call: str, name: str, value: int | str) -> Applied:
    """Return a fix that gives the call on a line an option."""
    return _applied(fix, Done.OPTION, place, call=call, option=name, value=value)


def setting(fix: str) -> Applied:
    """Return a fix that is one statement for the whole program."""
    return Applied(fix=fix)


def variable(fix: str, name: str, value: str) -> Applied:
    """Return a fix that sets an environment variable."""
    return _applied(fix, Done.VARIABLE, variable=name, value=value)


def autocast(case: Case, fix: str, dtype: str) -> list[Applied]:
    device = "cuda" if case.on_gpu else "cpu"
    return [
        _applied(fix, Done.AUTOCAST, place, model=model.name, device=device, dtype=dtype)
        for model, place in _called_model(case)
    ]


def inference_mode(case: Case) -> list[Applied]:
    return [
        _applied("inference-mode", Done.INFERENCE_MODE, place, model=model.name)
        for model, place in _called_model(case)
    ]


def channels_last(case: Case, memory_format: str) -> list[Applied]:
    return [
        _applied(
            "channels-last", Done.CHANNELS_LAST, place, model=model.name,
            memory_format=memory_format, images=True,
        )
        for model, place in _called_model(case)
    ]  # fmt: skip


def _called_model(case: Case) -> list[tuple[ModuleSeen, Place]]:
    """Return the main model and where it is called; nothing if that was not seen."""
    found = [(model, place_at(model.place)) for model in models(case)[:1]]
    return [(model, place) for model, place in found if place is not None]


def fix_code(case: Case, place: Place | None, *fixes: Applied) -> str:
    """Return the user's own lines with the edits of these fixes, each below a comment with the line
    before. Return "" if an edit cannot be made: then the advice is in words.

    place: the finding's own line, which the comments need not name.
    """
    if not fixes:
        return ""
    # Its parser takes 0.1 s to import, which a diagnosis without such a finding need not wait for.
    from ridgeline.source.editing import patched

    edits: dict[str, list[Edit]] = defaultdict(list)
    for fix in fixes:
        try:
            found = find_fix(fix.fix).source_edits(fix, lambda file: _text(case, file))
        except EditByHand:
            return ""
        for edit in found:
            file = edit.file or next(user_files(case), "")
            edits[file].append(replace(edit, file=file))
    parts = []
    for file, of_file in edits.items():
        text = _text(case, file)
        if text is None:
            return ""
        result = patched(file, text.encode(), of_file)
        if result.refused:
            return ""
        parts += _changed_lines(file, text, result.text, place)
    return "\n".join(parts)


def _text(case: Case, file: str) -> str | None:
    source = case.sources.get(file)
    return source.text if source is not None else None


def _changed_lines(file: str, old: str, new: str, place: Place | None) -> list[str]:
    from ridgeline.source.editing.tree import MARK  # as above

    def without_comments(lines: list[str]) -> list[str]:
        """Return the lines without the comments of a patch: the finding's claim says why."""
        kept = [line for line in lines if not line.strip().startswith(MARK)]
        return [line.partition(f"  {MARK}")[0] for line in kept]

    before, after = old.splitlines(), new.splitlines()
    old_statements, new_statements = _simple_statements(old), _simple_statements(new)
    parts: dict[tuple[int, int], str] = {}
    for _, i1, i2, j1, j2 in difflib.SequenceMatcher(None, before, after).get_opcodes():
        if before[i1:i2] == without_comments(after[j1:j2]):
            continue
        # A call over several lines is shown whole.
        around = [(a, b) for a, b in new_statements if a <= j2 and b > j1]
        first = min([j1 + 1, *(a for a, _ in around)])
        last = max([j2, *(b for _, b in around)])
        code = dedent("\n".join(without_comments(after[first - 1 : last]))).strip("\n")
        inside = (a for a, b in old_statements if a < i1 + 1 <= b)  # a statement over several lines
        number = next(inside, i1 + 1)
        own = place is not None and (place.file, place.line) == (file, number)
        name = PurePath(file).name
        where = "" if own else f"{name}:{number}"
        if (number, number) in old_statements and i1 < i2:
            where += f"{', ' if where else ''}before: {before[i1].strip()}"
        elif i1 == i2 and number == i1 + 1:
            where = f"{name}, after line {i1}" if i1 else f"{name}, at the top"
        parts[first, last] = f"# {where}\n{code}" if where else code
    return list(parts.values())


def _simple_statements(text: str) -> list[tuple[int, int]]:
    """Return first and last line of each statement that contains no other."""
    return [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, _SIMPLE)
    ]
