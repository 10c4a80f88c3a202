"""The user's files that a run or a trace names, with their places, calls and statements, and the
code of a finding.

The code is made from the edits of the finding's fix. A patch is made from the same edits, so that a
finding and a patch of the same fix agree.
"""

import ast
import difflib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path, PurePath
from textwrap import dedent

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Change
from ridgeline.fixes.fix import EditByHand, find_fix
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Fact, Reason
from ridgeline.records.facts import Place as UserLine
from ridgeline.records.finding import LineChange
from ridgeline.records.reason_codes import Done
from ridgeline.records.run import ModuleSeen
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.records.trial import Applied, FixTarget
from ridgeline.source.calls import SourceCall, all_calls, line_of
from ridgeline.source.file import SourceFile

_PRODUCTS = frozenset({
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "tensordot", "bilinear",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "scaled_dot_product_attention",
})  # fmt: skip
"""Functions that multiply matrices, by the last part of their names."""


def place_at(text: str) -> Place | None:
    """Return the place that `train.py:12` names, or None if the text names no line."""
    file, _, line = text.rpartition(":")
    return Place(file=file, line=int(line)) if file and line.isdigit() else None


def source_of(case: Case, place: Place | None) -> SourceFile | None:
    return case.sources.get(place.file) if place is not None else None


def located(case: Case, file: str, line: int) -> Place:
    """Return a line of a file with the name of the function around it."""
    source = case.sources.get(file)
    function = source.function_name(line) if source is not None else ""
    return Place(file=file, line=line, function=function)


def located_call(case: Case, call: SourceCall | None) -> Place | None:
    return located(case, call.file, call.line) if call is not None else None


def files_of(sites: Iterable[OpSite]) -> list[str]:
    return [site.place.file for site in sites if site.place is not None]


def user_files(case: Case) -> Iterator[str]:
    """Yield the script, then the files of modules, optimizers and loaders, then those of operators.
    A file may come up more than once."""
    if case.run is not None and case.run.target.kind == "script":
        yield case.run.target.name
        yield str(Path(case.run.environment.folder) / case.run.target.name)
    if case.capture is not None:
        places = [module.place for module in case.capture.modules]
        places += [optimizer.place for optimizer in case.capture.optimizers]
        places += [loader.place for loader in case.capture.loaders]
        yield from (place.rpartition(":")[0] for place in places if place)
    yield from files_of(case.sites.ops)


def user_sources(case: Case, first: Iterable[str] = ()) -> tuple[SourceFile, ...]:
    """Return the user's files that can be read, each once even if it has two names; those named in
    `first` come first."""
    found: dict[str, SourceFile] = {}
    for file in (*first, *user_files(case)):
        source = case.sources.get(file)
        if source is not None:
            found.setdefault(source.text, source)
    return tuple(found.values())


def user_calls(
    case: Case, names: Collection[str], first: Iterable[str] = ()
) -> tuple[SourceCall, ...]:
    """Return the calls of these names anywhere in the user's files."""
    return tuple(call for source in user_sources(case, first) for call in all_calls(source, names))


def as_traced(case: Case, file: str) -> str:
    """Return the name that the trace has for a file: the trace leaves out the search path."""
    ends = [name for name in files_of(case.sites.ops) if file.endswith(f"/{name.lstrip('./')}")]
    return max(ends, key=len, default=file)


def models(case: Case) -> list[ModuleSeen]:
    """Return the modules that were called and whose call has a place, without losses. The one with
    the most parameters and calls comes first."""
    seen = case.capture.modules if case.capture is not None else ()
    called = [module for module in seen if module.place and module.parameters and not module.loss]
    return sorted(called, key=lambda m: -m.parameters * max(m.calls + m.evaluation_calls, 1))


def model_call(case: Case, site: OpSite | None = None) -> Place | None:
    """Return where the model is called, as the run saw it. For a trace alone, return the line of
    the product, or of the call of a module, in the function of `site`."""
    for module in models(case):
        if (place := place_at(module.place)) is not None:
            return located(case, as_traced(case, place.file), place.line)
    place = site.place if site is not None else None
    source = source_of(case, place)
    if place is None or source is None:
        return place
    for wanted in (_is_product, _calls_variable(source)):
        line = line_of(case.sources, place, wanted)
        if line is not None:
            return replace(place, line=line)
    return place


def statement_at(case: Case, place: Place | None) -> str:
    """Return the statement on a line without its comment. Return "" if it cannot be read or takes
    more than one line."""
    source = source_of(case, place)
    if source is None or place is None:
        return ""
    for node in ast.walk(source.module):
        whole = isinstance(node, ast.Assign | ast.Expr | ast.Return | ast.AugAssign)
        if whole and node.lineno == place.line == node.end_lineno:  # type: ignore[attr-defined]
            return ast.get_source_segment(source.text, node) or ""
    return ""


def _is_product(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute):
        own = isinstance(called.value, ast.Name) and called.value.id == "self"
        return called.attr in _PRODUCTS or own
    return isinstance(called, ast.Name) and called.id in _PRODUCTS


def _calls_variable(source: SourceFile) -> Callable[[ast.AST], bool]:
    """Return a test for calls of something that was assigned or passed, not defined or imported: of
    a module."""
    names = {
        node.id
        for node in ast.walk(source.module)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    names |= {node.arg for node in ast.walk(source.module) if isinstance(node, ast.arg)}
    return lambda node: (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    )


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


def uses_kv_cache(case: Case) -> list[Applied]:
    return [
        _applied("kv-cache", Done.KV_CACHE, place, model=model.name)
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
    parts: list[str] = []
    changes: list[LineChange] = []
    for file, of_file in edits.items():
        text = _text(case, file)
        if text is None:
            return ""
        result = patched(file, text.encode(), of_file)
        if result.refused:
            return ""
        changed = _changed_lines(file, text, result.text, place)
        parts += (part for part, _ in changed)
        changes += (change for _, change in changed)
    code = Change("\n".join(parts))
    code.edits = tuple(changes)
    return code


def _text(case: Case, file: str) -> str | None:
    source = case.sources.get(file)
    return source.text if source is not None else None


def _changed_lines(
    file: str, old: str, new: str, place: Place | None
) -> list[tuple[str, LineChange]]:
    """Return each changed part as text, below a comment with the line before, and as lines."""
    from ridgeline.source.editing.tree import MARK  # as above

    def without_comments(lines: list[str]) -> list[str]:
        """Return the lines without the comments of a patch: the finding's claim says why."""
        kept = [line for line in lines if not line.strip().startswith(MARK)]
        return [line.partition(f"  {MARK}")[0] for line in kept]

    before, after = old.splitlines(), new.splitlines()
    old_statements, new_statements = _simple_statements(old), _simple_statements(new)
    parts: dict[tuple[int, int], tuple[str, LineChange]] = {}
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
        stretch = [(a, b) for a, b in old_statements if a <= i2 and b >= i1 + 1]
        end = max([i2, *(b for _, b in stretch)])
        replaced = before[number - 1 : end] if i1 < i2 or number <= i1 else []
        change = LineChange(
            file=file, line=number if replaced else i1,
            before=tuple(dedent("\n".join(replaced)).split("\n")) if replaced else (),
            after=tuple(code.split("\n")),
        )  # fmt: skip
        parts[first, last] = (f"# {where}\n{code}" if where else code, change)
    return list(parts.values())


def _simple_statements(text: str) -> list[tuple[int, int]]:
    """Return first and last line of each statement that contains no other."""
    return [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, _SIMPLE)
    ]
