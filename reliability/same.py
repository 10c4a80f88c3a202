"""Whether a program did the same under us: its end, stdout and stderr to the byte, its files."""

import re

from reliability.arms import Done
from reliability.outcome import Outcome

SHOWN = 400
_ADDRESS = re.compile(rb"0x[0-9a-f]{8,16}")
"""Where things lie in memory is another place in each process, plain or not."""
_KINETO = re.compile(rb"USDT:[0-9: -]+")
"""The date and the process in the two lines that torch's profiler writes."""


def differences(
    plain: Done, ours: Done, *, quiet: bool, merged: bool = False
) -> tuple[list[str], list[str]]:
    """A sentence for each thing that is not alike, none: the program could not tell; and what we
    said though asked to be quiet, which only a fault may make us do."""
    said: list[str] = []
    found = endings(plain.outcome, ours.outcome)
    before, after = (
        [_KINETO.sub(b"USDT:", _ADDRESS.sub(b"0x", text)) for text in texts(done)]
        for done in (plain, ours)
    )
    if not merged and before[0] != after[0]:
        found.append(f"stdout: {first_difference(before[0], after[0])}")
    mine, theirs = (before[0], after[0]) if merged else (before[1], after[1])
    if quiet and mine != theirs:
        extra = taken_out(mine, theirs)
        if extra and extra.startswith(b"ridgeline: not recorded") and extra.count(b"\n") == 1:
            said.append(extra.decode(errors="replace").strip()[:120])
            mine = theirs
    if quiet and mine != theirs:
        found.append(f"stderr, quiet: {first_difference(mine, theirs)}")
    elif not quiet and taken_out(mine, theirs) is None:
        found.append(f"stderr beside our block: {first_difference(mine, theirs)}")
    if plain.files != ours.files:
        found.append(f"files: {sorted(set(plain.files.items()) ^ set(ours.files.items()))}")
    if ours.problems:
        found.append(f"faults of ours: {ours.problems}")
    return found, said


def texts(done: Done) -> tuple[bytes, bytes]:
    return done.outcome.out, done.outcome.err


def endings(plain: Outcome, ours: Outcome) -> list[str]:
    found = []
    if ours.hung or plain.hung:
        found.append(f"hung: plain {plain.hung}, ours {ours.hung}")
    if plain.code != ours.code:
        found.append(f"exit: {plain.code} → {ours.code}")
    return found


def taken_out(plain: bytes, ours: bytes) -> bytes | None:
    """What was put in at one place, or None where that is not all that happened."""
    if plain == ours:
        return b""
    ahead = common(plain, ours)
    behind = common(plain[::-1], ours[::-1])
    more = len(ours) - len(plain)
    if more < 0 or ahead + behind < len(plain):
        return None
    at = len(plain) - min(behind, len(plain))
    block = ours[at : at + more]
    return block if b"ridgeline" in block else None


def common(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:  # halving: streams of a megabyte are compared
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def first_difference(plain: bytes, ours: bytes) -> str:
    at = common(plain, ours)
    begin = max(0, at - 60)
    return f"from byte {at}: {plain[begin : at + SHOWN]!r} → {ours[begin : at + SHOWN]!r}"
