"""Where a change was put on: the user's own lines."""

from ridgeline.records.trial import Applied


def at(applied: Applied) -> list[tuple[str, int]]:
    found = []
    for place in applied.places:
        file, _, line = place.rpartition(":")
        if file and line.isdecimal():
            found.append((file, int(line)))
    return found
