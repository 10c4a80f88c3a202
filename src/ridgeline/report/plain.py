"""Text from outside made safe to print: nothing in it moves a cursor, hides or reorders text.

The names in a trace come from whoever wrote it. A terminal obeys control characters (colours,
titles, links, the clipboard), and bidirectional overrides make a line read as another one. The last
part makes names of kernels, lines and functions short enough for a table, and still distinct.
"""

import re
import unicodedata

from ridgeline.records import facts
from ridgeline.records.trace import Place

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's classes of characters without a glyph: control, format, private, separators."""
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")

ELLIPSIS = "…"

_RETURNS = re.compile(r"^(?:void|bool|int|float|static|inline|__global__)\s+")
_NOISE = re.compile(
    r"\(anonymous namespace\)::|\{anonymous\}::|(?:::)?\{lambda\([^{}]*\)#\d+\}|"
    r"::operator\(\)\(\) const|"
    r"\b(?:at|c10|std|thrust|cub|native|detail|cuda|cutlass|at_cuda_detail|memory|policies)::"
)
"""Namespaces that every kernel of a library has: they fill a line and tell nothing apart."""
_FUNCTOR = re.compile(
    r"\b(?!Binary|AUnary|BUnary|Unary)[A-Za-z_]\w*?(?:Functor\w*|_kernel_cuda\b|_kernel_impl\b|Ops\b)"
)
"""The part of a template that says what an elementwise or reduction kernel computes."""
MAX_NAME_CHARACTERS = 400
"""Templates of 20,000 characters exist."""
_CODE_WITHOUT_NAME = {
    "<module>": "top level",
    "<lambda>": "lambda",
    "<listcomp>": "list comprehension",
    "<setcomp>": "set comprehension",
    "<dictcomp>": "dict comprehension",
    "<genexpr>": "generator expression",
}
"""Plain names for Python's own names of code that is not a function."""


def printable(text: str) -> str:
    """Return the text with every unseen character spelled out: \\x1b, \\u202e, \\r."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(character) for character in text)


def shorten(text: str, width: int) -> str:
    """Return at most `width` characters, cut in the middle: both ends of a kernel's name tell what
    it is."""
    if len(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}{ELLIPSIS}{text[len(text) - tail :]}"


def json_text(text: str) -> str:
    """Return a JSON document with unseen characters as \\u escapes: the same document, safe at a
    terminal."""
    return text if text.isascii() and "\x7f" not in text else _NOT_ASCII.sub(_escaped, text)


def _escaped(match: "re.Match[str]") -> str:
    character = match.group()
    if unicodedata.category(character) not in _UNSEEN:
        return character
    halves = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{halves[i]:02x}{halves[i + 1]:02x}" for i in range(0, len(halves), 2))


def _spelled(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN:
        return character
    if ord(character) > 127:
        return character.encode("ascii", "backslashreplace").decode()
    return repr(character)[1:-1]


def kernel_name(name: str) -> str:
    """Return a kernel's name without return type, argument list, namespaces and nested templates.

    `void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, …>(int, …)`
    becomes `vectorized_elementwise_kernel<4, AddFunctor>`.
    """
    plain = printable(name[: 10 * MAX_NAME_CHARACTERS])
    if "::" not in plain and not _RETURNS.match(plain):
        return plain[:MAX_NAME_CHARACTERS]  # not C++: a copy, a range, a Python function
    plain = _NOISE.sub("", _RETURNS.sub("", plain))
    short = _outer(plain)[:MAX_NAME_CHARACTERS].strip() or printable(name[:MAX_NAME_CHARACTERS])
    functor = next((match for match in _FUNCTOR.findall(plain) if match not in short), "")
    return f"{short} {functor}" if functor else short


def _outer(name: str) -> str:
    """Cut template arguments from the second depth on, and all lists in parentheses."""
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


def place_name(place: Place | facts.Place | None) -> str:
    """Return "train.py:63 step", with at most one folder before the file."""
    if place is None:
        return ""
    parts = re.split(r"[\\/]", place.file)
    line = f"{'/'.join(parts[-2:])}:{place.line}"
    return printable(f"{line} {_CODE_WITHOUT_NAME.get(place.function, place.function)}".strip())


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
