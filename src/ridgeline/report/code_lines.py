"""Lines of Python made to fit, and never dropped: half a fix is more than none.

In the order in which a reader would do it: a long comment goes below its line, a call is broken
after a comma, then anything in brackets, then at a blank with a backslash. All of that is the same
code. What is left, a long text in quotes, is broken where the room ends.
"""

INDENT = 4
LEAST = 20
"""Columns; with less room than that nothing is broken sensibly."""
_OPENS, _CLOSES, _QUOTES = "([{", ")]}", "\"'"
_COMMA, _BLANK, _BRACKET = range(3)
"""Kinds of places, the better first."""
_BACKSLASH = " \\"
"""Goes on with the line where no bracket is open."""


def fitted(lines: tuple[str, ...], width: int) -> tuple[str, ...]:
    """The same code in lines of at most `width`."""
    room = max(width, LEAST)
    return tuple(piece for line in lines for piece in _fitted(line, room))


def _fitted(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    code, comment = _parted(line)
    lead = line[: len(line) - len(line.lstrip())][: width - LEAST // 2]
    told = _comment(comment, lead, width) if comment else []
    return (_broken(code, width) if code.strip() else []) + told


def _comment(comment: str, lead: str, width: int) -> list[str]:
    """Lines of words, each a comment of its own."""
    found: list[str] = []
    said = lead + "#"
    for word in comment.lstrip("#").split():
        if len(said) + 1 + len(word) > width and said.strip() != "#":
            found.append(said)
            said = lead + "#"
        said += f" {word}"
        while len(said) > width:  # one word that is longer than the room
            found.append(said[:width])
            said = f"{lead}# {said[width:]}"
    return [*found, said]


def _broken(line: str, width: int) -> list[str]:
    lead = " " * min(len(line) - len(line.lstrip()) + INDENT, width - LEAST // 2)
    found: list[str] = []
    depth = 0
    while len(line) > width:
        cut, mark = _cut(line, depth, len(lead), width)
        found.append(line[:cut].rstrip() + mark)
        depth = _depth(line[:cut], depth)
        line = lead + line[cut:].lstrip()
    return [*found, line]


def _cut(line: str, depth: int, lead: int, width: int) -> tuple[int, str]:
    """Where to break, and what goes there: in the outermost brackets, of their places the last that
    fits."""
    places = [
        (deep or len(line), kind, -at)
        for kind, deep, at in _places(line, depth)
        if lead + 1 < at <= width - (0 if deep else len(_BACKSLASH))
    ]
    if not places:
        return width - 1, _BACKSLASH.strip()
    outermost, _, at = min(places)
    return -at, "" if outermost < len(line) else _BACKSLASH


def _places(line: str, depth: int) -> list[tuple[int, int, int]]:
    """(kind, depth, end) of the places where a line can be broken and stays the same code: inside
    brackets anywhere between words, outside of them at a blank. `depth`: of brackets that are open
    from the lines before."""
    found: list[tuple[int, int, int]] = []
    for at, character, deep in _outside_texts(line, depth):
        if character == "," and deep:
            found.append((_COMMA, deep, at + 1))
        elif character in _OPENS and line[at + 1 : at + 2] not in _CLOSES:
            found.append((_BRACKET, deep, at + 1))
        elif character == " " and line[:at].strip():
            found.append((_BLANK, deep, at))
    return found


def _parted(line: str) -> tuple[str, str]:
    """The code and its comment."""
    for at, character, _ in _outside_texts(line, 0):
        if character == "#":
            return line[:at].rstrip(), line[at:]
    return line, ""


def _depth(line: str, depth: int) -> int:
    seen = _outside_texts(line, depth)
    return seen[-1][2] if seen else depth


def _outside_texts(line: str, depth: int) -> list[tuple[int, str, int]]:
    """(place, character, depth of brackets behind it) of what is in no text of the program."""
    found: list[tuple[int, str, int]] = []
    quote, skip = "", False
    for at, character in enumerate(line):
        if skip:
            skip = False
        elif quote:
            skip = character == "\\"
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        else:
            depth += (character in _OPENS) - (character in _CLOSES)
            depth = max(depth, 0)
            found.append((at, character, depth))
    return found
