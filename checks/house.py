"""Checks of the source tree that no linter has: `make check` runs them.

1. No code reads a sentence: no string method, regular expression or search for a literal on a field
   that holds English (`why`, `sentence`, `claim` …). What a caller needs to know is a field.
2. No file is longer than 800 lines.
3. No fragment: a module that one other module imports has at least 40 lines, or it belongs inside
   that module.

Prints each violation with its line and ends with exit code 1 if there is any.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "ridgeline"
MAX_FILE_LINES = 800
MIN_FRAGMENT_LINES = 40
"""Lines below which a module with a single importer is part of that importer."""
PLUGIN_FOLDERS = ("diagnosis/rules", "fixes/catalog", "cli", "report/renderers")
"""Folders in which a file is one rule, fix, command or format, found by its name."""
MESSAGE_FIELDS = {
    "why", "what", "sentence", "claim", "doubt", "note", "message", "detail", "says", "said",
    "told", "headline", "remains",
}  # fmt: skip
"""Names of record fields that hold English."""
READING_METHODS = {
    "startswith", "endswith", "partition", "rpartition", "split", "rsplit", "removeprefix",
    "removesuffix", "find", "rfind", "index", "rindex", "splitlines",
}  # fmt: skip
REGEX_FUNCTIONS = {"match", "fullmatch", "search", "findall", "finditer", "split", "sub"}


def main() -> int:
    problems: list[str] = []
    importers: dict[str, set[str]] = defaultdict(set)
    lengths: dict[str, int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        shown = str(path.relative_to(ROOT))
        length = text.count("\n")
        if length > MAX_FILE_LINES:
            problems.append(f"{shown}: {length} lines, the limit is {MAX_FILE_LINES}")
        tree = ast.parse(text)
        problems += [f"{shown}:{line}: reads a sentence: {code}" for line, code in readings(tree)]
        name = _module_name(path)
        lengths[name] = length
        for imported in imports(tree):
            importers[imported].add(name)
    problems += _fragments(lengths, importers)
    for problem in problems:
        print(problem)
    lines = sum(lengths.values())
    print(f"src has {len(lengths)} files and {lines:,} lines; {len(problems)} problems")
    return 1 if problems else 0


def readings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and code of every place that reads a field which holds English."""
    for node in ast.walk(tree):
        if (isinstance(node, ast.Call) and _reads(node)) or (
            isinstance(node, ast.Compare)
            and isinstance(node.ops[0], ast.In | ast.NotIn)
            and _is_text(node.left)
            and _is_message(node.comparators[0])
        ):
            yield node.lineno, ast.unparse(node)


def _reads(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    method, owner = call.func.attr, call.func.value
    if method in READING_METHODS and _is_message(owner):
        return bool(call.args) or method != "split"  # split() without arguments only folds spaces
    return method in REGEX_FUNCTIONS and any(_is_message(argument) for argument in call.args)


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of ridgeline that a module imports, at any level."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ridgeline"):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("ridgeline"))


def _fragments(lengths: dict[str, int], importers: dict[str, set[str]]) -> Iterator[str]:
    folders = tuple(f"ridgeline.{folder.replace('/', '.')}." for folder in PLUGIN_FOLDERS)
    for name, lines in lengths.items():
        others = importers[name] - {name}
        is_plugin = name.startswith(folders)
        is_package = f"{name}." in "".join(f"{each}\n" for each in lengths)
        if lines < MIN_FRAGMENT_LINES and len(others) == 1 and not is_plugin and not is_package:
            yield f"{name}: {lines} lines, imported by {min(others)} alone: move it in there"


def _module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_message(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in MESSAGE_FIELDS


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


if __name__ == "__main__":
    sys.exit(main())
