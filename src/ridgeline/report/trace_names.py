"""What kernels, operators and lines are called in a table: short, with what tells them apart."""

import re

from ridgeline.records.trace import Place
from ridgeline.report.plain import printable

_RETURNS = re.compile(r"^(?:void|bool|int|float|static|inline|__global__)\s+")
_NOISE = re.compile(
    r"\(anonymous namespace\)::|\{anonymous\}::|(?:::)?\{lambda\([^{}]*\)#\d+\}|"
    r"::operator\(\)\(\) const|"
    r"\b(?:at|c10|std|thrust|cub|native|detail|cuda|cutlass|at_cuda_detail|memory|policies)::"
)
"""Namespaces that every kernel of a library has: they say nothing and fill a line."""

_TELLING = re.compile(
    r"\b(?!Binary|AUnary|BUnary|Unary)[A-Za-z_]\w*?(?:Functor\w*|_kernel_cuda\b|_kernel_impl\b|Ops\b)"
)
"""What an elementwise or reduction kernel computes, however deep in its templates it stands."""

LONGEST = 400
"""Characters of a name that are looked at; templates of 20,000 exist."""


def kernel(name: str) -> str:
    """A kernel's name without return type, argument list, namespaces and nested templates.

    `void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, …>(int, …)`
    becomes `vectorized_elementwise_kernel<4, AddFunctor>`.
    """
    plain = printable(name[: 10 * LONGEST])
    if "::" not in plain and not _RETURNS.match(plain):
        return plain[:LONGEST]  # not C++: a copy, a range, a Python function
    plain = _NOISE.sub("", _RETURNS.sub("", plain))
    short = _outer(plain)[:LONGEST].strip() or printable(name[:LONGEST])
    told = next((found for found in _TELLING.findall(plain) if found not in short), "")
    return f"{short} {told}" if told else short


def _outer(name: str) -> str:
    """Template arguments of the second depth and all lists in parentheses are cut."""
    kept: list[str] = []
    angle = round_ = 0
    for character in name:
        if angle and character in "()":
            round_ = max(round_ + (1 if character == "(" else -1), 0)
        elif round_:
            continue
        elif character == "<":
            angle += 1
            if angle == 1:
                kept.append(character)
        elif character == ">" and angle:
            angle -= 1
            if angle == 0:
                kept.append(character)
        elif character == "(" and angle == 0 and kept:
            break
        elif angle <= 1:
            kept.append(character)
    return "".join(kept).replace(" >", ">").replace("<, ", "<")


def place(found: Place | None) -> str:
    """train.py:63 step; the last two folders at most."""
    if found is None:
        return ""
    parts = re.split(r"[\\/]", found.file)
    where = f"{'/'.join(parts[-2:])}:{found.line}"
    return printable(f"{where} {_CODE_WITHOUT_NAME.get(found.function, found.function)}".strip())


_CODE_WITHOUT_NAME = {
    "<module>": "top level",
    "<lambda>": "lambda",
    "<listcomp>": "list comprehension",
    "<setcomp>": "set comprehension",
    "<dictcomp>": "dict comprehension",
    "<genexpr>": "generator expression",
}
"""Plain names for Python's own names of code that is not a function."""


def function_label(function: str, file: str) -> str:
    """Return a function as a sentence names it: "decode()", "Pictures.__getitem__()", or "the top
    level of train.py" for code outside of functions."""
    name = function.replace("<locals>.", "")
    own = re.split(r"[\\/]", file)[-1]
    if name in ("", "<module>"):
        return f"the top level of {own}" if own else "the top level of the program"
    outer, _, last = name.rpartition(".")
    if last in _CODE_WITHOUT_NAME:
        return f"a {_CODE_WITHOUT_NAME[last]} in {f'{outer}()' if outer else own}"
    return f"{name}()"
