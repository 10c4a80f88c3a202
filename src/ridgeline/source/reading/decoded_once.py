"""Decoding moved to where a dataset is made: the program's own call, once for all samples."""

import ast
from collections.abc import Iterator

from ridgeline.records.run import PythonLine
from ridgeline.source.reading.datasets import HandsOut
from ridgeline.source.reading.sources import Source, Sources

_Method = ast.FunctionDef | ast.AsyncFunctionDef


def done_once(sources: Sources, line: PythonLine, data: HandsOut | None) -> str:
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
    for method, call in _calls(source, name, "__getitem__"):
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


def _handed_out(source: Source | None, name: str, data: HandsOut) -> str:
    wanted = {n.id for n in ast.walk(_parsed(data.target)) if isinstance(n, ast.Name)}
    for method, call in _calls(source, name, "__iter__"):
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


def _calls(source: Source | None, name: str, method: str) -> Iterator[tuple[_Method, ast.Call]]:
    """Calls of a function in methods of that name."""
    for scope in ast.walk(source.tree) if source is not None else ():
        if isinstance(scope, _Method) and scope.name == method and source is not None:
            for node in source.walk(scope):
                if isinstance(node, ast.Call) and _last(node) == name:
                    yield scope, node


def _needs(source: Source | None, method: _Method, call: ast.Call, known: set[str]) -> bool:
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


def _last(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
