"""Datasets in the user's source: who decides on the order of samples, how decoding is done once,
and whether samples are drawn at random.

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
    assigns,
    keyword_value,
    last_name,
    names_in,
    parsed_expression,
)

_ASKS_FOR_WORKER = "get_worker_info"
_RANDOM_NAMES = re.compile(
    r"^(?:rand\w*|random\w*|uniform_?|normal_?|normalvariate|gauss|lognormal_?|exponential_?"
    r"|choices?|shuffle|sample|permutation|permuted|bernoulli_?|multinomial|poisson|beta|binomial"
    r"|dropout\d?d?|jitter\w*|augment\w*|cutout|mixup|cutmix|Random\w*|Augment\w*|ColorJitter"
    r"|TrivialAugment\w*|AutoAugment|RandAugment|AugMix|default_rng|Generator)$"
)
_GENERATORS = re.compile(r"(?:^|[._])(?:random|rng|generator|augment\w*)$", re.IGNORECASE)


class IterableData(Struct, frozen=True, kw_only=True):
    """A dataset that hands its samples out itself: an IterableDataset."""

    name: str
    shares: bool
    """Whether each worker hands out a part of the samples."""
    target: str = ""
    """`blob` of `for blob in self.blobs`, the loop in its `__iter__` that can be shared out."""
    over: str = ""
    """self.blobs"""
    delegates: bool = False
    """Whether the loop is `yield from self.blobs`."""

    def shared(self) -> str:
        """Return what its `__iter__` needs for workers."""
        part = f"itertools.islice({self.over or 'samples'}, worker, None, workers)"
        loop = f"for {self.target or 'sample'} in {part}:"
        return (
            f"# in {self.name}.__iter__ (import itertools): a part for each worker, else each "
            "hands out every sample\n"
            "info = torch.utils.data.get_worker_info()\n"
            "worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)\n"
            + (f"yield from {part}" if self.delegates else loop)
        )


def iterable_data(sources: SourceFiles, files: Iterable[str], name: str) -> IterableData | None:
    """Return the dataset of this class; None if it is asked for samples by number, or if no source
    shows it."""
    for file in dict.fromkeys(files):
        source = sources.get(file) if file else None
        family = _family(source, name) if source is not None else []
        if source is None or not family:
            continue
        methods = {m.name: m for kind in reversed(family)
                   for m in kind.body if isinstance(m, Function)}  # fmt: skip
        bases = {last_name(base) for kind in family for base in kind.bases}
        named = any(base.startswith("IterableDataset") for base in bases)
        if not named and ("__iter__" not in methods or "__getitem__" in methods):
            return None
        target, over, delegates = _sample_loop(source, methods.get("__iter__"))
        return IterableData(
            name=name, shares=_shares(source, family), target=target, over=over, delegates=delegates
        )
    return None


def dataset_class(source: SourceFile | None, text: str) -> str:
    """Return the class of what a loader is given: `Stream` of `Stream()`, or of a name that is
    assigned it."""
    node = parsed_expression(text)
    if isinstance(node, ast.Name) and source is not None:
        made = (n.value for n in source.nodes if isinstance(n, ast.Assign) and assigns(n, text))
        node = next(made, node)
    return last_name(node) if isinstance(node, ast.Call) else ""


def _family(source: SourceFile, name: str) -> list[ast.ClassDef]:
    """Return a class and those of the same file that it derives from, itself first."""
    classes = {n.name: n for n in source.nodes if isinstance(n, ast.ClassDef)}
    family: list[ast.ClassDef] = []
    wanted = [name]
    while wanted:
        kind = classes.get(wanted.pop(0))
        if kind is not None and kind not in family:
            family.append(kind)
            wanted += [last_name(base) for base in kind.bases]
    return family


def _shares(source: SourceFile, family: list[ast.ClassDef]) -> bool:
    """Return whether workers share the samples: the class asks for its worker, or a function of the
    file does that the class or the options of a loader name."""
    own = " ".join(ast.unparse(kind) for kind in family)
    options = (keyword_value(call, "worker_init_fn") for call in source.calls)
    started = [ast.unparse(option) for option in options if option is not None]
    asking = [f.name for f in source.functions if _ASKS_FOR_WORKER in ast.unparse(f)]
    return _ASKS_FOR_WORKER in own or any(
        name in own or any(name in text for text in started) for name in asking
    )


def _sample_loop(source: SourceFile, method: Function | None) -> tuple[str, str, bool]:
    """Return the target of the outermost loop that hands samples out and uses its own variable
    (one that does not counts epochs), what it goes through, and whether it is a `yield from`."""
    nodes = list(source.walk(method)) if method is not None else []
    for node in nodes:
        if isinstance(node, ast.For):
            inside = [n for statement in node.body for n in ast.walk(statement)]
            names = {n.id for n in inside if isinstance(n, ast.Name)}
            yields = any(isinstance(n, ast.Yield | ast.YieldFrom) for n in inside)
            if yields and names & names_in(node.target):
                return ast.unparse(node.target), ast.unparse(node.iter), False
        elif isinstance(node, ast.YieldFrom):
            return "", ast.unparse(node.value), True
    for node in nodes:
        match node:  # return iter(self.samples)
            case ast.Return(value=ast.Call(func=ast.Name(id="iter"), args=[over, *_])):
                return "", ast.unparse(over), True
    return "", "", False


def decoded_once(sources: SourceFiles, line: PythonLine, data: IterableData | None) -> str:
    """Return code that decodes all samples where the dataset is made. `data` is the dataset if it
    hands out its samples itself."""
    name = line.function.replace("<locals>.", "").rpartition(".")[2]
    source = sources.get(line.file)
    if data is not None:
        target = parsed_expression(data.target)
        known = names_in(target) if target is not None else set()
        for method, call in _calls_in_methods(source, name, "__iter__"):
            text = ast.unparse(call)
            if data.target and not _needs(source, method, call, known):
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


def _calls_in_methods(
    source: SourceFile | None, name: str, method: str
) -> Iterator[tuple[Function, ast.Call]]:
    """Yield the calls of a function in methods of one name, each with its method."""
    if source is not None:
        for scope in source.functions:
            for node in source.walk(scope) if scope.name == method else ():
                if isinstance(node, ast.Call) and last_name(node) == name:
                    yield scope, node


def _needs(source: SourceFile | None, method: Function, call: ast.Call, known: set[str]) -> bool:
    """Return whether a call is given what the method itself makes, beside what is known."""
    made = {a.arg for a in method.args.args[1:]}
    for node in source.walk(method) if source is not None else ():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            made.add(node.id)
    return bool(names_in(call) & (made - known))


def draws_random_numbers(sources: SourceFiles, file: str, line: int) -> bool | None:
    """Return whether the function around a line draws random numbers, so that its results differ
    each time; None if its source cannot be read."""
    source = sources.get(file)
    if source is None:
        return None
    for node in source.walk(source.scope(line)):
        if isinstance(node, ast.Call):
            func = node.func
            owner = ast.unparse(func.value) if isinstance(func, ast.Attribute) else ""
            if _RANDOM_NAMES.match(last_name(node)) or _GENERATORS.search(owner):
                return True
    return False
