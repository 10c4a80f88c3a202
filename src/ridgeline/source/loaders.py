"""The line that makes a DataLoader, that line with other options, and the functions that put its
batches together."""

import ast
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from ridgeline.records.run import LoaderSeen
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall, all_calls, merge_into_starred
from ridgeline.source.file import (
    Function,
    SourceFile,
    SourceFiles,
    last_name,
)

_NAMES = ("DataLoader", "StatefulDataLoader")
_TRAINERS = ("TrainingArguments", "SFTConfig", "DPOConfig", "RewardConfig")
"""Hugging Face: a Trainer makes its loaders from these; the first also ends other names."""
_TAKES = ("train", "evaluate", "predict")
"""What a Trainer is asked for; its loaders are used beneath it."""
_NOT_FOR_TRAINING = ("val", "test", "eval", "dev")
_POSITIONS = {"batch_size": 1, "shuffle": 2, "num_workers": 5, "collate_fn": 6, "pin_memory": 7}
"""Positions of the DataLoader's arguments that a fix may set."""


class LoaderCall(Struct, frozen=True, kw_only=True):
    place: Place
    text: str
    """loader = DataLoader(…), as written."""
    trainers: bool = False
    """No DataLoader: the arguments of a Trainer, which makes it. Its options have longer names."""

    def with_options(self, **options: str) -> str:
        """The call with these options put in, in the place of those of the same name: as it was
        written where it is on one line, else on one line."""
        try:
            statement = ast.parse(self.text).body[0]
        except (SyntaxError, IndexError):
            return ""
        of = _is_trainers if self.trainers else _is_loader
        call = next((n for n in ast.walk(statement) if of(n)), None)
        if not isinstance(call, ast.Call):
            return ""
        if self.trainers:
            options = {f"dataloader_{name}": value for name, value in options.items()}
        if _by_position(call, options):
            return ""
        options, merged = merge_into_starred(call, options)
        if "\n" not in self.text and not merged:
            return _edited(self.text, call, options)
        kept = [k for k in call.keywords if k.arg not in options]
        added = [ast.keyword(name, ast.parse(value).body[0].value)  # type: ignore[attr-defined]
                 for name, value in options.items()]  # fmt: skip
        call.keywords = [*kept, *added]
        return ast.unparse(ast.fix_missing_locations(statement))

    def dataset(self) -> str:
        """What it is given to load, as written; "" where that is not known."""
        try:
            nodes = ast.walk(ast.parse(self.text))
        except SyntaxError:
            return ""
        call = next((n for n in nodes if _is_loader(n)), None)
        if not isinstance(call, ast.Call):
            return ""
        given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "dataset")]
        return ast.unparse(given[0]) if given else ""


def _by_position(call: ast.Call, options: Collection[str]) -> bool:
    """Return whether an option is, or may be, given by its position: a keyword beside it would
    raise."""
    starred = any(isinstance(given, ast.Starred) for given in call.args)
    return starred or any(_POSITIONS.get(name, 99) < len(call.args) for name in options)


def _edited(text: str, call: ast.Call, options: Mapping[str, str]) -> str:
    """Numbers and quotes stay as they were written. Offsets are of bytes."""
    line = text.encode()
    written = {k.arg: k.value for k in call.keywords if k.arg in options}
    added = [f"{name}={value}" for name, value in options.items() if name not in written]
    close = (call.end_col_offset or 1) - 1
    before = line[:close].rstrip().removesuffix(b",").rstrip()  # its last argument, or "("
    lead = [] if before.endswith(b"(") and not call.args and not call.keywords else [""]
    edits = [(len(before), close, ", ".join([*lead, *added]) if added else "")]
    edits += [
        (value.col_offset, value.end_col_offset or 0, options[name])
        for name, value in written.items()
        if name
    ]
    for start, end, new in sorted(edits, reverse=True):
        line = line[:start] + new.encode() + line[end:]
    return line.decode()


def loader_call(
    sources: SourceFiles,
    files: Iterable[str],
    loader: LoaderSeen | None,
    seen: Iterable[str] = (),
) -> LoaderCall | None:
    """Return the call that made `loader`: the one on the line where the loader was seen being made,
    else the one that fits what is known of the loader. Return None if no source shows such a call.
    `seen` are the lines (file:line:function) at which any loader was seen being made. If there are
    any, no other line is named."""
    for frame in loader.made if loader is not None else ():
        on_line = _on_line(sources, frame)
        if on_line is not None:
            return _described(*on_line)
    read = [sources.get(file) for file in dict.fromkeys(files) if file]
    every = [(one, call) for one in read if one for call in all_calls(one, _NAMES)]
    made = [_on_line(sources, frame) for frame in seen]
    found = [one for one in made if one is not None] if made else every
    arguments = [(one, call) for one in read if one for call in _trainers(one)]
    if arguments and (not found or _by_trainer(sources, loader)):
        return _described(*arguments[0], trainers=True)
    if not found:
        return None
    best = max(found, key=lambda pair: _fits(pair[0], pair[1], loader))
    return _described(*best)


def _on_line(sources: SourceFiles, frame: str) -> tuple[SourceFile, SourceCall] | None:
    """Return the call on a line (file:line:function) that makes a loader, or None."""
    file, line, _ = [*frame.rsplit(":", 2), "", ""][:3]
    source = sources.get(file)
    if source is None or not line.isdecimal():
        return None
    calls = all_calls(source, _NAMES)
    on_line = (c for c in calls if c.line <= int(line) <= c.line + c.text.count("\n"))
    return next(((source, call) for call in on_line), None)


def _trainers(source: SourceFile) -> list[SourceCall]:
    nodes = [n for n in ast.walk(source.module) if _is_trainers(n)]
    names = {last_name(n) for n in nodes if isinstance(n, ast.Call)}
    return list(all_calls(source, names))


def _by_trainer(sources: SourceFiles, loader: LoaderSeen | None) -> bool:
    """Whether batches are taken inside a Trainer: the program's own line asks it to train."""
    file, _, line = loader.place.rpartition(":") if loader is not None else ("", "", "")
    source = sources.get(file) if file and line.isdecimal() else None
    if source is None:
        return False
    asked = [call for call in all_calls(source, _TAKES) if call.on]
    loops = [n for n in ast.walk(source.module) if isinstance(n, ast.For) and n.lineno == int(line)]
    return not loops and any(call.line == int(line) for call in asked)


def _fits(source: SourceFile, call: SourceCall, loader: LoaderSeen | None) -> tuple[int, int]:
    statement = _statement(source, call)
    target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    score = -2 * any(word in target.lower() for word in _NOT_FOR_TRAINING)
    if loader is not None:
        options = _options(call)
        workers = options.get("num_workers", 0)
        score += 2 * (workers == loader.workers) - (workers not in (loader.workers, None))
        score += loader.dataset in call.text
    return score, -call.line


def _options(call: SourceCall) -> dict[str, object]:
    """Those written as numbers or words; None for what is computed."""
    try:
        made = ast.parse(call.text, mode="eval").body
    except SyntaxError:
        return {}
    keywords = made.keywords if isinstance(made, ast.Call) else []
    return {
        k.arg: k.value.value if isinstance(k.value, ast.Constant) else None
        for k in keywords
        if k.arg
    }


def _described(source: SourceFile, call: SourceCall, *, trainers: bool = False) -> LoaderCall:
    statement = _statement(source, call)
    scope = source.scope(call.line)
    text = ast.get_source_segment(source.text, statement) if statement is not None else None
    simple = isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr)
    return LoaderCall(
        place=Place(
            file=source.file,
            line=call.line,
            function=scope.name if isinstance(scope, ast.FunctionDef) else "<module>",
        ),
        text=text if text and simple else call.text,
        trainers=trainers,
    )


def _statement(source: SourceFile, call: SourceCall) -> ast.stmt | None:
    """The smallest one around the call."""
    around = [
        node
        for node in ast.walk(source.module)
        if isinstance(node, ast.stmt)
        and not isinstance(node, Function | ast.ClassDef)
        and node.lineno <= call.line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: (node.lineno, -(node.end_lineno or 0)), default=None)


def _is_loader(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node) in _NAMES


def _is_trainers(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return last_name(node) in _TRAINERS or last_name(node).endswith(_TRAINERS[0])


_BY_NAME = "collat"


def collating(sources: SourceFiles, files: Iterable[str]) -> frozenset[str]:
    """Their names, without the class or function around them. What they make depends on which
    samples came together, so with shuffling it differs each time."""
    read = [source for file in dict.fromkeys(files) if (source := sources.get(file)) is not None]
    bodies: dict[str, list[tuple[SourceFile, ast.AST]]] = {}
    found: set[str] = set()
    for source in read:
        for node in ast.walk(source.module):
            if isinstance(node, ast.keyword) and node.arg == "collate_fn":
                found |= _all_names(node.value)
            elif isinstance(node, ast.FunctionDef):
                bodies.setdefault(node.name, []).append((source, node))
            elif isinstance(node, ast.ClassDef):  # an object as a collate_fn
                calls = [n for n in node.body if isinstance(n, ast.FunctionDef)]
                called = [n for n in calls if n.name == "__call__"]
                bodies.setdefault(node.name, []).extend((source, n) for n in called)
    found |= {name for name in bodies if _BY_NAME in name.lower()}
    return frozenset(_called_from(found, bodies))


def _called_from(found: set[str], bodies: dict[str, list[tuple[SourceFile, ast.AST]]]) -> set[str]:
    reached: set[str] = set()
    ahead = [name for name in found if name in bodies]
    while ahead:
        name = ahead.pop()
        if name in reached:
            continue
        reached.add(name)
        for source, body in bodies[name]:
            reached |= {"__call__"} if getattr(body, "name", "") == "__call__" else set()
            calls = [n.func for n in source.walk(body) if isinstance(n, ast.Call)]
            ahead += [n for call in calls for n in _all_names(call) if n in bodies]
    return reached


def _all_names(node: ast.AST) -> set[str]:
    """collate, Collate(8), self.collate, partial(collate, pad=0), lambda items: collate(items)"""
    named = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return named | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
