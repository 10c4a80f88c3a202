"""Datasets in the user's source: whether one is asked for samples by their numbers or hands them
out itself, and whether its workers share them.

Each worker has a copy of the dataset. Numbers are dealt out to them; what a dataset hands out
itself comes from every copy, so that two workers double an epoch, unless it asks
`get_worker_info()` for its part."""

import ast
from collections.abc import Iterable, Iterator

from msgspec import Struct

from ridgeline.source.reading.sources import Function, Source, Sources

_ASKS = "get_worker_info"


class HandsOut(Struct, frozen=True, kw_only=True):
    """A dataset that hands its samples out itself: an IterableDataset."""

    name: str
    shares: bool
    """Each worker hands out a part of them."""
    target: str = ""
    """blob, of `for blob in self.blobs`, the loop in its `__iter__` that can be shared out."""
    over: str = ""
    """self.blobs"""
    delegates: bool = False
    """`yield from self.blobs`"""

    def shared(self) -> str:
        """What its `__iter__` needs for workers."""
        part = f"itertools.islice({self.over or 'samples'}, worker, None, workers)"
        loop = f"for {self.target or 'sample'} in {part}:"
        return (
            f"# in {self.name}.__iter__ (import itertools): a part for each worker, else each "
            "hands out every sample\n"
            "info = torch.utils.data.get_worker_info()\n"
            "worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)\n"
            + (f"yield from {part}" if self.delegates else loop)
        )


def hands_out(sources: Sources, files: Iterable[str], name: str) -> HandsOut | None:
    """The dataset of this class; None where it is asked by number, or no source shows it."""
    for file in dict.fromkeys(files):
        source = sources.get(file) if file else None
        family = _family(source, name) if source is not None else []
        if source is None or not family:
            continue
        methods = {m.name: m for one in reversed(family) for m in _methods(one)}
        bases = {ast.unparse(base).rpartition(".")[2] for one in family for base in one.bases}
        named = any(base.startswith("IterableDataset") for base in bases)
        if not named and ("__iter__" not in methods or "__getitem__" in methods):
            return None
        target, over, delegates = _loop(source, methods.get("__iter__"))
        return HandsOut(
            name=name, shares=_shares(source, family), target=target, over=over, delegates=delegates
        )
    return None


def class_given(source: Source | None, text: str) -> str:
    """Stream, of what a loader is given: `Stream()`, or a name that is assigned one."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return ""
    if isinstance(node, ast.Name) and source is not None:
        for one in ast.walk(source.tree):
            if isinstance(one, ast.Assign) and _assigns(one, node.id):
                node = one.value
                break
    called = node.func if isinstance(node, ast.Call) else None
    return ast.unparse(called).rpartition(".")[2] if called is not None else ""


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(t, ast.Name) and t.id == name for t in node.targets)


def _family(source: Source, name: str) -> list[ast.ClassDef]:
    """The class and those of the same file it derives from, itself first."""
    classes = {n.name: n for n in ast.walk(source.tree) if isinstance(n, ast.ClassDef)}
    found: list[ast.ClassDef] = []
    wanted = [name]
    while wanted:
        one = classes.get(wanted.pop(0))
        if one is not None and one not in found:
            found.append(one)
            wanted += [ast.unparse(base).rpartition(".")[2] for base in one.bases]
    return found


def _methods(one: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in one.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _shares(source: Source, family: list[ast.ClassDef]) -> bool:
    """By the words of the class, or of functions of the file it or a loader's options name."""
    own = " ".join(ast.unparse(one) for one in family)
    if _ASKS in own:
        return True
    asking = [
        n.name for n in ast.walk(source.tree)
        if isinstance(n, ast.FunctionDef) and _ASKS in ast.unparse(n)
    ]  # fmt: skip
    started = [
        ast.unparse(k.value) for n in ast.walk(source.tree) if isinstance(n, ast.Call)
        for k in n.keywords if k.arg == "worker_init_fn"
    ]  # fmt: skip
    return any(name in own or any(name in one for one in started) for name in asking)


def _loop(source: Source, method: ast.AST | None) -> tuple[str, str, bool]:
    """The outermost loop that hands samples out and uses its own variable: one that does not
    counts epochs."""
    if method is None or isinstance(method, ast.Lambda):
        return "", "", False
    for node in source.walk(method):
        if isinstance(node, ast.For) and _yields(node) and _used(node):
            return ast.unparse(node.target), ast.unparse(node.iter), False
        if isinstance(node, ast.YieldFrom):
            return "", ast.unparse(node.value), True
    for node in source.walk(method):  # return iter(self.samples)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            given = node.value
            if isinstance(given.func, ast.Name) and given.func.id == "iter" and given.args:
                return "", ast.unparse(given.args[0]), True
    return "", "", False


def _yields(node: ast.For) -> bool:
    return any(
        isinstance(n, ast.Yield | ast.YieldFrom)
        for statement in node.body
        for n in ast.walk(statement)
        if not isinstance(n, Function)
    )


def _used(node: ast.For) -> bool:
    names = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    return any(
        isinstance(n, ast.Name) and n.id in names
        for statement in node.body
        for n in ast.walk(statement)
    )
