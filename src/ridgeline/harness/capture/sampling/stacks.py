"""A thread's Python stack, taken in microseconds as numbers; made into text later."""

from types import CodeType, FrameType

from ridgeline.records.run import CUT, DEEPEST

Key = tuple[int, ...]
"""A stack, innermost first: a code object's id and the instruction in it, in turn. Code objects
themselves compare by value, without their file: the same helper in two files would be one."""

_FURTHEST = 256
"""Frames walked; 0.4 µs each, under the interpreter's lock."""
_OUTER = 15


def walk(frame: FrameType, codes: dict[int, CodeType], beneath: CodeType | None) -> Key:
    """Of a deep stack both ends are kept: what runs, and whose call it began with."""
    key: list[int] = []
    at: FrameType | None = frame
    while at is not None and len(key) < 2 * _FURTHEST:
        code = at.f_code
        if code is beneath:
            break
        ident = id(code)
        codes[ident] = code  # kept until the flush, so that its id is nobody else's
        key.append(ident)
        key.append(at.f_lasti)  # the line is looked up later: here it would cost microseconds
        at = at.f_back
    if len(key) > 2 * DEEPEST:
        key[2 * (DEEPEST - _OUTER - 1) : -2 * _OUTER] = (0, 0)
    return tuple(key)


def as_text(
    key: Key, codes: dict[int, CodeType], named: dict[tuple[int, int], str]
) -> tuple[str, ...]:
    """Outermost first, as text."""
    found: list[str] = []
    for ident, instruction in zip(key[::2], key[1::2], strict=True):
        text = named.get((ident, instruction))
        if text is None:
            text = _named(codes[ident], instruction) if ident else CUT
            named[ident, instruction] = text
        found.append(text)
    return tuple(reversed(found))


def _named(code: CodeType, instruction: int) -> str:
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end:
            line = number if number is not None else line
            break
    text = f"{code.co_filename[-1000:]}:{line}:{code.co_qualname[-200:]}"
    # A file's name may hold bytes that are no text: JSON cannot.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
