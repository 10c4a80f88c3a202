"""Lines of Python made to fit: broken after a comma inside brackets, where that changes nothing."""

INDENT = 4


def fitted(lines: tuple[str, ...], width: int) -> tuple[str, ...]:
    """The same code in lines of at most `width`; empty where a line cannot be broken."""
    found: list[str] = []
    for line in lines:
        pieces = _broken(line, width)
        if not pieces:
            return ()
        found += pieces
    return tuple(found)


def _broken(line: str, width: int) -> list[str]:
    lead = " " * (len(line) - len(line.lstrip()) + INDENT)
    found: list[str] = []
    while len(line) > width:
        places = [(depth, -end) for depth, end in _commas(line, bool(found)) if end <= width]
        if not places:
            return []
        cut = -min(places)[1]  # of the outermost call, the last that fits
        found.append(line[:cut])
        line = lead + line[cut:].lstrip()
        if len(lead) + 1 >= cut:  # nothing but the indent would be cut off the next time
            return []
    return [*found, line]


def _commas(line: str, inside: bool) -> list[tuple[int, int]]:
    """(depth, end) of commas inside brackets, not in a text and not in a comment. `inside`: the
    brackets were opened on a line before."""
    found, depth, quote, skip = [], int(inside), "", False
    for at, character in enumerate(line):
        if skip:
            skip = False
        elif quote:
            skip = character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "#":
            break
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth > 0:
            found.append((depth, at + 1))
    return found
