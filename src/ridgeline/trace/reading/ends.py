"""Where a JSON value ends, without building it: the portable half of scanner.c's `value_end`.

Accepts what Python's json accepts with strict=False (control characters in strings, NaN), no
deeper than 64, and tells a text that stops too early from one that is no JSON. About 5 MB/s:
for the blocks that do not decode at once, which are few.
"""

import re

DEPTH = 64
SHORT = -1
BAD = -2

# These patterns use no possessive quantifiers (`*+`) and no atomic groups: in CPython 3.11.0 to
# 3.11.4 a possessive group can match one item too far (Debian 12 has 3.11.2). A plain group stores
# a backtracking point for every repetition, which would be millions for a string of 32 MB. So
# groups repeat at most MAX_REPEATS times and are matched in a loop. A repeated character class
# stores one count only, and needs no limit.
MAX_REPEATS = 1000
_PLAIN_TEXT = re.compile(rb'[^"\\]*')
_ESCAPES = re.compile(rb'(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\]*){1,%d}' % MAX_REPEATS)
_NUMBER = re.compile(
    rb"-?(?:Infinity|(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)|NaN|true|false|null"
)
_SPACE = re.compile(rb"[ \n\r\t]*")
_STOPS_SHORT = re.compile(
    rb"-?(?:\Z|(?:0|[1-9][0-9]*)(?:\.\Z|(?:\.[0-9]+)?(?:\Z|[eE](?:[+-]?\Z|[+-]?[0-9]+\Z))))"
)
"""A number the end of the text may have cut."""
_GOES_WRONG = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.(?![0-9])|(?:\.[0-9]+)?[eE](?![+-]?[0-9]))")
_PARTIAL_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_SCALARS = re.compile(
    rb'(?:"[^"\\]*"[ \n\r\t]*:[ \n\r\t]*(?:"[^"\\]*"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)'
    rb"[ \n\r\t]*,[ \n\r\t]*){1,%d}" % MAX_REPEATS
)
"""Members with plain values, up to the comma after them: most of an event in one step."""
_TOO_DEEP = re.compile(rb'(?:\{[ \n\r\t]*"[^"\\]*"[ \n\r\t]*:[ \n\r\t]*|\[[ \n\r\t]*){64}[{\[]')
"""Nothing but openings: a file of a million of them is gone through from each."""
_WORDS = (b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity")
_CLOSE = {0x7B: 0x7D, 0x5B: 0x5D}


def value_end(text: bytes, start: int) -> int:
    """The position after the value at `start`; SHORT where the text ends first, BAD if no JSON."""
    if _TOO_DEEP.match(text, start):
        return BAD
    size = len(text)
    at = start
    open_: list[int] = []
    while True:
        # a value begins here
        if at >= size:
            return SHORT
        close = _CLOSE.get(text[at])
        if close is not None:
            if len(open_) >= DEPTH:
                return BAD
            open_.append(close)
            at = _space(text, at + 1)
            if at >= size:
                return SHORT
            if text[at] != close:
                at = _member(text, at) if close == 0x7D else at
                if at < 0:
                    return at
                continue
            open_.pop()
            at += 1
        else:
            at = _scalar(text, at)
            if at < 0:
                return at
        # a value has ended
        while open_:
            at = _space(text, at)
            if at >= size:
                return SHORT
            if text[at] == 0x2C:
                at = _space(text, at + 1)
                if open_[-1] == 0x7D:
                    at = _member(text, at)
                    if at < 0:
                        return at
                elif at >= size:
                    return SHORT
                break
            if text[at] != open_.pop():
                return BAD
            at += 1
        else:
            return at


def _space(text: bytes, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _member(text: bytes, at: int) -> int:
    """A key, its colon and the space after; plain members before it are passed over."""
    while plain := _SCALARS.match(text, at):
        at = plain.end()
    if at >= len(text):
        return SHORT
    if text[at] != 0x22:
        return BAD
    at = _string(text, at)
    if at < 0:
        return at
    at = _space(text, at)
    if at >= len(text):
        return SHORT
    return _space(text, at + 1) if text[at] == 0x3A else BAD


def _scalar(text: bytes, at: int) -> int:
    if text[at] == 0x22:
        return _string(text, at)
    match = _NUMBER.match(text, at)
    if _STOPS_SHORT.match(text, at):
        return SHORT
    if match:
        return BAD if _GOES_WRONG.match(text, at) else match.end()
    rest = text[at : at + 9]
    cut = at + len(rest) == len(text)
    return SHORT if cut and any(word.startswith(rest) for word in _WORDS) else BAD


def _string(text: bytes, at: int) -> int:
    """Return the position after the string whose opening quote is at `at`."""
    match = _PLAIN_TEXT.match(text, at + 1)
    assert match is not None
    end = match.end()
    while escapes := _ESCAPES.match(text, end):
        end = escapes.end()
    if end >= len(text):
        return SHORT
    if text[end] == 0x22:
        return end + 1
    return SHORT if _PARTIAL_ESCAPE.match(text, end) else BAD
