"""What a rule says of itself, read from its file: `ridgeline explain` runs no rule.

Importing the rules imports what they look at (numpy, the analyses of traces): 0.5 s where reading
one file takes a few milliseconds.
"""

import ast
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

PACKAGE = "ridgeline.diagnosis.rules"


def rule_names() -> tuple[str, ...]:
    """Of every rule there is; a rule's file is named after it."""
    names = (module.name for module in iter_modules(_folders()))
    return tuple(sorted(name.replace("_", "-") for name in names if not name.startswith("_")))


def rule_text(rule: str) -> dict[str, Any]:
    """The fields of `RULE` in its file."""
    name = rule.replace("-", "_")
    for folder in _folders():
        file = Path(folder) / f"{name}.py"
        if file.is_file():
            found = _read(file.read_text(encoding="utf-8"))
            if found is not None:
                return found
    made = import_module(f"{PACKAGE}.{name}").RULE
    return {field: getattr(made, field) for field in made.__struct_fields__}


def _folders() -> list[str]:
    spec = find_spec(PACKAGE)
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _read(text: str) -> dict[str, Any] | None:
    """None where a field is more than a literal."""
    constants: dict[str, Any] = {}
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name, value = statement.targets[0].id, statement.value
        try:
            if name == "RULE" and isinstance(value, ast.Call):
                return {k.arg: _literal(k.value, constants) for k in value.keywords if k.arg}
            constants[name] = _literal(value, constants)
        except (ValueError, KeyError):
            if name == "RULE":
                return None
    return None


def _literal(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """A literal, or a text with constants of the same file put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(_literal(part, constants)) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        if node.format_spec is not None or node.conversion != -1:
            raise ValueError("formatted")
        node = node.value
    return constants[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)
