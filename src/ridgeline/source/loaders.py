"""The line that makes a DataLoader, that line with other options, and the functions that put its
batches together."""

import ast
from collections.abc import Iterable, Mapping

from msgspec import Struct

from ridgeline.records.run import LoaderSeen
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall, all_calls, merge_into_starred, source_call
from ridgeline.source.file import SourceFile, SourceFiles, is_on_line, keyword_value, last_name

_LOADERS = ("DataLoader", "StatefulDataLoader")
_TRAINER_ARGUMENTS = ("TrainingArguments", "SFTConfig", "DPOConfig", "RewardConfig")
"""Classes of Hugging Face from which a Trainer makes its loaders; names that end like the first
count too."""
_TRAINER_METHODS = ("train", "evaluate", "predict")
"""Methods of a Trainer beneath which its loaders are used."""
_NOT_FOR_TRAINING = ("val", "test", "eval", "dev")
_POSITIONS = {"batch_size": 1, "shuffle": 2, "num_workers": 5, "collate_fn": 6, "pin_memory": 7}
"""Positions of the DataLoader's arguments that a fix may set."""


class LoaderCall(Struct, frozen=True, kw_only=True):
    place: Place
    text: str
    """loader = DataLoader(…), as written."""
    dataset: str = ""
    """The loader's dataset, as written; "" if it is not known."""
    trainers: bool = False
    """Whether the call makes no DataLoader but the arguments of a Trainer, which makes it. Its
    options have longer names."""

    def option(self, name: str) -> str:
        """Return an option of the loader as written; "" if the call does not give it."""
        call = self._call()
        value = keyword_value(call, name) if call is not None else None
        return ast.unparse(value) if value is not None else ""

    def _call(self) -> ast.Call | None:
        """Return the call in the text, parsed anew."""
        try:
            statement = ast.parse(self.text)
        except SyntaxError:
            return None
        return next((n for n in ast.walk(statement) if _is_loader(n)), None)  # type: ignore[return-value]

    def with_options(self, **options: str) -> str:
        """Return the call with these options, each in the place of an option of the same name: as
        it was written if it is on one line, else on one line."""
        try:
            statement = ast.parse(self.text).body[0]
        except (SyntaxError, IndexError):
            return ""
        is_wanted = _is_trainer_arguments if self.trainers else _is_loader
        call = next((n for n in ast.walk(statement) if is_wanted(n)), None)
        if not isinstance(call, ast.Call):
            return ""
        if self.trainers:
            options = {f"dataloader_{name}": value for name, value in options.items()}
        starred = any(isinstance(given, ast.Starred) for given in call.args)
        if starred or any(_POSITIONS.get(name, 99) < len(call.args) for name in options):
            return ""  # a keyword beside an option given by position would raise
        options, merged = merge_into_starred(call, options)
        if "\n" not in self.text and not merged:
            return _edited(self.text, call, options)
        added = [ast.keyword(name, ast.parse(value, mode="eval").body)
                 for name, value in options.items()]  # fmt: skip
        call.keywords = [*(k for k in call.keywords if k.arg not in options), *added]
        return ast.unparse(ast.fix_missing_locations(statement))


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
    read = [source for file in dict.fromkeys(files) if file and (source := sources.get(file))]
    made = [_on_line(sources, frame) for frame in seen]
    found = [pair for pair in made if pair is not None]
    if not made:
        found = [(source, call) for source in read for call in all_calls(source, _LOADERS)]
    arguments = [(source, source_call(source, call)) for source in read for call in source.calls
                 if _is_trainer_arguments(call)]  # fmt: skip
    if arguments and (not found or _is_made_by_trainer(sources, loader)):
        return _described(*arguments[0], trainers=True)
    if not found:
        return None
    return _described(*max(found, key=lambda pair: _score(pair[0], pair[1], loader)))


def collating(sources: SourceFiles, files: Iterable[str]) -> frozenset[str]:
    """Return the names of the functions that put a batch together: a loader's `collate_fn` and what
    it calls, without the class or function around them. What they make depends on which samples
    came together, so with shuffling it differs each time."""
    bodies: dict[str, list[tuple[SourceFile, ast.AST]]] = {}
    waiting: set[str] = set()
    for source in filter(None, map(sources.get, dict.fromkeys(files))):
        for node in source.nodes:
            if isinstance(node, ast.keyword) and node.arg == "collate_fn":
                waiting |= _all_names(node.value)
            elif isinstance(node, ast.FunctionDef):
                bodies.setdefault(node.name, []).append((source, node))
            elif isinstance(node, ast.ClassDef):  # an object as a collate_fn
                calls = [n for n in node.body
                         if isinstance(n, ast.FunctionDef) and n.name == "__call__"]  # fmt: skip
                bodies.setdefault(node.name, []).extend((source, n) for n in calls)
    waiting |= {name for name in bodies if "collat" in name.lower()}
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in reached or name not in bodies:
            continue
        reached.add(name)
        for source, body in bodies[name]:
            if getattr(body, "name", "") == "__call__":
                reached.add("__call__")
            for node in source.walk(body):
                waiting |= _all_names(node.func) if isinstance(node, ast.Call) else set()
    return frozenset(reached)


def _all_names(node: ast.AST) -> set[str]:
    """Return the names in collate, Collate(8), self.collate, partial(collate, pad=0) and lambda
    items: collate(items)."""
    return {last_name(n) for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)}


def _edited(text: str, call: ast.Call, options: Mapping[str, str]) -> str:
    """Edit the text itself, so that numbers and quotes stay as they were written. Offsets are of
    bytes."""
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


def _on_line(sources: SourceFiles, frame: str) -> tuple[SourceFile, SourceCall] | None:
    """Return the call on a line (file:line:function) that makes a loader, or None."""
    file, line, _ = [*frame.rsplit(":", 2), "", ""][:3]
    source = sources.get(file)
    if source is None or not line.isdecimal():
        return None
    calls = all_calls(source, _LOADERS)
    on_line = (c for c in calls if c.line <= int(line) <= c.line + c.text.count("\n"))
    return next(((source, call) for call in on_line), None)


def _is_made_by_trainer(sources: SourceFiles, loader: LoaderSeen | None) -> bool:
    """Return whether batches are taken inside a Trainer: the program's own line asks it to
    train."""
    file, _, line = loader.place.rpartition(":") if loader is not None else ("", "", "")
    source = sources.get(file) if file and line.isdecimal() else None
    if source is None:
        return False
    asked = [call for call in all_calls(source, _TRAINER_METHODS) if call.on]
    loops = [n for n in source.nodes if isinstance(n, ast.For) and n.lineno == int(line)]
    return not loops and any(call.line == int(line) for call in asked)


def _score(source: SourceFile, call: SourceCall, loader: LoaderSeen | None) -> tuple[int, int]:
    """Return how well a call fits what is known of the loader."""
    statement = _statement(source, call)
    target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    score = -2 * any(word in target.lower() for word in _NOT_FOR_TRAINING)
    if loader is not None and call.node is not None:
        given = keyword_value(call.node, "num_workers") or ast.Constant(0)
        workers = given.value if isinstance(given, ast.Constant) else None  # None: computed
        score += 2 * (workers == loader.workers) - (workers not in (loader.workers, None))
        score += loader.dataset in call.text
    return score, -call.line


def _described(source: SourceFile, call: SourceCall, *, trainers: bool = False) -> LoaderCall:
    statement, node = _statement(source, call), call.node
    simple = isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr)
    text = ast.get_source_segment(source.text, statement) if statement is not None else None
    dataset: ast.expr | None = None
    if node is not None and not trainers:
        dataset = node.args[0] if node.args else keyword_value(node, "dataset")
    return LoaderCall(
        place=Place(
            file=source.file, line=call.line, function=source.function_name(call.line) or "<module>"
        ),
        text=text if text and simple else call.text,
        dataset=ast.unparse(dataset) if dataset is not None else "",
        trainers=trainers,
    )


def _statement(source: SourceFile, call: SourceCall) -> ast.stmt | None:
    """Return the smallest statement around a call, functions and classes apart."""
    apart = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    around = [
        node
        for node in source.nodes
        if isinstance(node, ast.stmt)
        and not isinstance(node, apart)
        and is_on_line(node, call.line)
    ]
    return max(around, key=lambda node: (node.lineno, -(node.end_lineno or 0)), default=None)


def _is_loader(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node) in _LOADERS


def _is_trainer_arguments(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node)
    return name in _TRAINER_ARGUMENTS or name.endswith(_TRAINER_ARGUMENTS[0])
