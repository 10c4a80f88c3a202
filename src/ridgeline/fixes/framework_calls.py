"""Whose a line is: the names that a program's files import from a framework, followed through
classes of its own, and the call that makes the trainer whose loop a line is in."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from ridgeline.fixes.fix import Source
from ridgeline.fixes.framework_settings import Framework
from ridgeline.source.file import SourceFile, calls_in, dotted_name, last_name, parsed
from ridgeline.source.program import program_files

_HUGGING_FACE = ("transformers", "trl", "sentence_transformers", "setfit")
_LIGHTNING = ("lightning", "pytorch_lightning")
_STARTS: dict[str, Framework] = {"train": "hugging face", "fit": "lightning"}
_MODULES = ("LightningModule", "LightningDataModule")
_NO_ARGUMENTS = ("ModelConfig", "ScriptArguments")
"""Of trl, whose other configurations are TrainingArguments."""


class Origin(Struct, frozen=True):
    """transformers, Trainer: of a class of the program's own, what it is made from."""

    module: str
    name: str

    @property
    def framework(self) -> Framework:
        return "hugging face" if self.module in _HUGGING_FACE else "lightning"

    @property
    def trains(self) -> bool:
        return self.name.endswith("Trainer")

    @property
    def settles(self) -> bool:
        """It is what a Hugging Face trainer takes as its `args`."""
        if self.module == "trl" and self.name.endswith("Config"):
            return self.name not in _NO_ARGUMENTS
        return self.name.endswith("TrainingArguments")


class Site(Struct, frozen=True):
    """A call in a file of the program."""

    file: str
    tree: SourceFile
    call: ast.Call

    @property
    def name(self) -> str:
        return last_name(self.call)

    @property
    def place(self) -> str:
        return f"{Path(self.file).name}, line {self.call.lineno}"


class Loop(Struct, frozen=True):
    """A line is in a framework's loop."""

    framework: Framework
    trainer: Site | None
    """Whose; None where that cannot be told."""
    starts: Site | None = None
    """`trainer.fit(model)`, where the line is that."""
    inside: bool = False
    """The line is in a class that the framework calls."""


class Files:
    """The files of a program, from one of them on."""

    def __init__(self, source: Source, start: str) -> None:
        paths = [Path(start), *program_files(source, start)]
        texts = {path.resolve(): (str(path), source(str(path)) or "") for path in reversed(paths)}
        found = [(name, parsed(text)) for name, text in reversed(texts.values())]
        self.trees = {name: tree for name, tree in found if tree is not None}
        self.start = start

    def loop(self, line: int) -> Loop | None:
        """Of that line of the first file; None where the loop is the program's own."""
        tree = self.trees.get(self.start)
        if tree is None or not any(_imports(one) for one in self.trees.values()):
            return None
        for call in tree.calls_on_line(line):
            if (found := self._started(tree, call)) is not None:
                return found
        for node in ast.walk(tree.module):
            if isinstance(node, ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0):
                origin = self.origin(tree, node.name)
                if origin is not None and (origin.trains or origin.name in _MODULES):
                    return Loop(origin.framework, self._only(origin.framework), inside=True)
        return None

    def _started(self, tree: SourceFile, call: ast.Call) -> Loop | None:
        """`trainer.train()`, `trainer.fit(model, loader)`: by here the user's own lines end."""
        if not isinstance(call.func, ast.Attribute):
            return None
        starts, owner = Site(self.start, tree, call), call.func.value
        if isinstance(owner, ast.Call):
            origin = self.origin(tree, dotted_name(owner.func))
            if origin is None or not origin.trains:
                return None
            return Loop(origin.framework, Site(self.start, tree, owner), starts)
        name = dotted_name(owner)
        made = [
            (origin, Site(self.start, tree, value))
            for value in _values(tree, name)
            if isinstance(value, ast.Call)
            and (origin := self.origin(tree, dotted_name(value.func))) is not None
            and origin.trains
        ]
        if made:
            whole = made[0][0].framework
            return Loop(whole, made[0][1] if len(made) == 1 else None, starts)
        which = _STARTS.get(call.func.attr)
        if which is None or not name or "model" in name.lower() or not self._imports_of(which):
            return None
        return Loop(which, self._only(which), starts)

    def mention(self, *words: str) -> bool:
        return any(word in tree.text for tree in self.trees.values() for word in words)

    def of_lightning(self, what: str) -> bool:
        """A class of the program's own that is named there is one of Lightning's modules."""
        origins = [self.origin(self.trees[self.start], word) for word in re.findall(r"\w+", what)]
        return any(one is not None and one.name == "LightningModule" for one in origins)

    def made(self, wanted: Callable[[Origin], bool]) -> Iterator[Site]:
        """Calls that make what comes from there, in all files."""
        for file, tree in self.trees.items():
            for call in calls_in(tree.module):
                origin = self.origin(tree, dotted_name(call.func))
                if origin is not None and wanted(origin):
                    yield Site(file, tree, call)

    def origin(
        self, tree: SourceFile, name: str, seen: frozenset[tuple[int, str]] = frozenset()
    ) -> Origin | None:
        first, _, rest = name.partition(".")
        module, bound = _imports(tree, every=True).get(first, ("", ""))
        last = rest.rpartition(".")[2] or bound or first
        if module in (*_HUGGING_FACE, *_LIGHTNING) and not self._hidden(tree, name):
            return Origin(module, last)
        for other in self.trees.values():
            if (id(other), last) in seen:
                continue
            for base in _classes(other).get(last, ()):
                found = self.origin(other, base, seen | {(id(other), last)})
                if found is not None:
                    return found
        return None

    @staticmethod
    def _hidden(tree: SourceFile, name: str) -> bool:
        """By a class of its own that has the imported name, and is not made from it."""
        own = _classes(tree).get(name)
        return own is not None and name not in own

    def _only(self, framework: Framework) -> Site | None:
        """The one trainer of the program that has a name."""
        found = [
            site
            for site in self.made(lambda one: one.trains and one.framework == framework)
            if not isinstance(next(site.tree.parents(site.call)), ast.Attribute)
        ]
        return found[0] if len(found) == 1 else None

    def _imports_of(self, framework: Framework) -> bool:
        wanted = _HUGGING_FACE if framework == "hugging face" else _LIGHTNING
        return any(
            module in wanted
            for tree in self.trees.values()
            for module, _ in _imports(tree).values()
        )


def values(site: Site, name: str) -> list[ast.expr]:
    """What that name is given in the function, or the module, that the call stands in."""
    scope = site.tree.scope_of(site.call)
    return [v for v in _values(site.tree, name) if site.tree.scope_of(v) is scope]


def _values(tree: SourceFile, name: str) -> list[ast.expr]:
    found = []
    for node in ast.walk(tree.module):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name and any(dotted_name(one) == name for one in targets):
                found.append(node.value)
    return found


@lru_cache(maxsize=256)
def _imports(tree: SourceFile, every: bool = False) -> dict[str, tuple[str, str]]:
    """By the name it has here: the outermost module, and its name there, "" of a module itself.
    Those of frameworks, or all."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree.module):
        if isinstance(node, ast.Import):
            for one in node.names:
                module = one.name.partition(".")[0]
                found[one.asname or module] = (module, "")
        elif isinstance(node, ast.ImportFrom):
            module = "." if node.level else (node.module or "").partition(".")[0]
            for one in node.names:
                found[one.asname or one.name] = (module, one.name)
    wanted = (*_HUGGING_FACE, *_LIGHTNING)
    return {name: pair for name, pair in found.items() if every or pair[0] in wanted}


@lru_cache(maxsize=256)
def _classes(tree: SourceFile) -> dict[str, list[str]]:
    """Its own, each with what it is made from."""
    nodes = [node for node in ast.walk(tree.module) if isinstance(node, ast.ClassDef)]
    return {node.name: [dotted_name(base) for base in node.bases] for node in nodes}
