"""Amounts as people type them: memory, shares; times are in `ridgeline.units`."""

import re

from ridgeline.errors import UsageError

_SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SI = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_size(text: str) -> int:
    """80GiB, 80GB, 512MiB, 24g: bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", text.lower())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{text!r} is not an amount of memory", "write 80GiB, 24GB or 512MiB")
    number, letter, binary, unit = match.groups()
    scale = _SI[letter] if letter and unit and not binary else _SIZES[letter]
    return int(float(number) * scale)


def parse_share(option: str, text: str) -> float:
    """2%, 0.02: a share between 0 and 1."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share < 1:
        raise UsageError(f"{option} {text!r} is not a share", "write 2% or 0.02")
    return share
