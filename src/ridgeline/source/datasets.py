"""Datasets in the user's source: who decides on the order of samples, what is decoded, and whether
samples are drawn at random.

Each worker has a copy of the dataset. Numbers are dealt out to the workers; what a dataset hands
out itself comes from every copy, so that two workers double an epoch, unless it asks
`get_worker_info()` for its part.
"""

import ast
import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from ridgeline.records.run import PythonLine
from ridgeline.source.file import (
    Function,
    SourceFile,
    SourceFiles,
    last_name,
)

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


def hands_out(sources: SourceFiles, files: Iterable[str], name: str) -> HandsOut | None:
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


def class_given(source: SourceFile | None, text: str) -> str:
    """Stream, of what a loader is given: `Stream()`, or a name that is assigned one."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return ""
    if isinstance(node, ast.Name) and source is not None:
        for one in ast.walk(source.module):
            if isinstance(one, ast.Assign) and _assigns(one, node.id):
                node = one.value
                break
    called = node.func if isinstance(node, ast.Call) else None
    return ast.unparse(called).rpartition(".")[2] if called is not None else ""


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(t, ast.Name) and t.id == name for t in node.targets)


def _family(source: SourceFile, name: str) -> list[ast.ClassDef]:
    """The class and those of the same file it derives from, itself first."""
    classes = {n.name: n for n in ast.walk(source.module) if isinstance(n, ast.ClassDef)}
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


def _shares(source: SourceFile, family: list[ast.ClassDef]) -> bool:
    """By the words of the class, or of functions of the file it or a loader's options name."""
    own = " ".join(ast.unparse(one) for one in family)
    if _ASKS in own:
        return True
    asking = [
        n.name for n in ast.walk(source.module)
        if isinstance(n, ast.FunctionDef) and _ASKS in ast.unparse(n)
    ]  # fmt: skip
    started = [
        ast.unparse(k.value) for n in ast.walk(source.module) if isinstance(n, ast.Call)
        for k in n.keywords if k.arg == "worker_init_fn"
    ]  # fmt: skip
    return any(name in own or any(name in one for one in started) for name in asking)


def _loop(source: SourceFile, method: ast.AST | None) -> tuple[str, str, bool]:
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


def done_once(sources: SourceFiles, line: PythonLine, data: HandsOut | None) -> str:
    """`data`: the dataset, where it hands out its samples itself."""
    name = line.function.replace("<locals>.", "").rpartition(".")[2]
    source = sources.get(line.file)
    if data is not None:
        return _handed_out(source, name, data)
    if name.startswith("__"):
        return (
            "# in __init__: once\nself.decoded = [self.decode(i) for i in range(len(self))]\n"
            "# in __getitem__\nsample = self.decoded[index]"
        )
    for method, call in _calls_in_methods(source, name, "__getitem__"):
        number = method.args.args[1].arg if len(method.args.args) > 1 else ""
        text = ast.unparse(call)
        if number and not _needs(source, method, call, {number}):
            return (
                f"# in __init__: once a sample\nself.decoded = [{text} for {number} in "
                f"range(len(self))]\n# in __getitem__, in the place of {text}\n"
                f"self.decoded[{number}]"
            )
    return (
        f"# in __init__: once a sample\nself.decoded = [{name}(one) for one in …]\n"
        f"# in __getitem__, in the place of {name}(…)\nsample = self.decoded[index]"
    )


def _handed_out(source: SourceFile | None, name: str, data: HandsOut) -> str:
    wanted = {n.id for n in ast.walk(_parsed(data.target)) if isinstance(n, ast.Name)}
    for method, call in _calls_in_methods(source, name, "__iter__"):
        text = ast.unparse(call)
        if data.target and not _needs(source, method, call, wanted):
            return (
                f"# in {data.name}.__init__: once a sample\n"
                f"self.decoded = [{text} for {data.target} in {data.over}]\n"
                f"# in __iter__, which calls {text}\nfor sample in self.decoded:"
            )
    return (
        f"# in {data.name}: __iter__ as it is now, under another name\ndef read(self): …\n"
        "# in __init__: once\nself.decoded = list(self.read())\n"
        "def __iter__(self):\n    yield from self.decoded"
    )


def _calls_in_methods(
    source: SourceFile | None, name: str, method: str
) -> Iterator[tuple[Function, ast.Call]]:
    """Calls of a function in methods of that name."""
    for scope in ast.walk(source.module) if source is not None else ():
        if isinstance(scope, Function) and scope.name == method and source is not None:
            for node in source.walk(scope):
                if isinstance(node, ast.Call) and last_name(node) == name:
                    yield scope, node


def _needs(source: SourceFile | None, method: Function, call: ast.Call, known: set[str]) -> bool:
    """Whether it is given what the method itself makes, beside what is known."""
    made = {a.arg for a in method.args.args[1:]}
    for node in source.walk(method) if source is not None else ():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            made.add(node.id)
    used = {n.id for n in ast.walk(call) if isinstance(n, ast.Name)}
    return bool(used & (made - known))


def _parsed(text: str) -> ast.AST:
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


_DRAWS = re.compile(
    r"^(?:rand\w*|random\w*|uniform_?|normal_?|normalvariate|gauss|lognormal_?|exponential_?"
    r"|choices?|shuffle|sample|permutation|permuted|bernoulli_?|multinomial|poisson|beta|binomial"
    r"|dropout\d?d?|jitter\w*|augment\w*|cutout|mixup|cutmix|Random\w*|Augment\w*|ColorJitter"
    r"|TrivialAugment\w*|AutoAugment|RandAugment|AugMix|default_rng|Generator)$"
)
_SOURCES = re.compile(r"(?:^|[._])(?:random|rng|generator|augment\w*)$", re.IGNORECASE)


def draws(sources: SourceFiles, file: str, line: int) -> bool | None:
    """Whether the function around a line draws; None where its source cannot be read."""
    source = sources.get(file)
    if source is None:
        return None
    return any(_is_drawing(node) for node in source.walk(source.scope(line)))


def _is_drawing(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        on = ast.unparse(node.func.value)
        return bool(_DRAWS.match(node.func.attr) or _SOURCES.search(on))
    return isinstance(node.func, ast.Name) and bool(_DRAWS.match(node.func.id))
