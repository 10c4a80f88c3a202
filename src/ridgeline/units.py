"""Numbers as people read them: three significant digits, no trailing zeros.

SI prefixes for counts, FLOPs and bandwidth (as datasheets print them), binary ones for sizes of
memory. Ratios go in as fractions: `percent(0.953)` is "95.3 %". What is not a number is "—".
"""

import math
import re
from collections.abc import Sequence

from ridgeline.errors import UsageError

_SI = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NOTHING = "—"
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def significant(value: float, digits: int = 3) -> str:
    """`value` rounded to `digits` significant digits, in plain notation: 0.0123, 7.9, 784."""
    if not math.isfinite(value):
        return _NOTHING
    if value == 0:
        return "0"
    rounded = _rounded(value, digits)
    decimals = max(digits - 1 - math.floor(math.log10(abs(rounded))), 0)
    text = f"{rounded:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float) -> str:
    """25_600_000 -> "25.6 M"."""
    return _scaled(value, 1000.0, _SI).rstrip()


def flop(value: float) -> str:
    """An amount of arithmetic: 8.2e9 -> "8.2 GFLOP"."""
    return _scaled(value, 1000.0, tuple(f"{prefix}FLOP" for prefix in _SI))


def flops(value: float) -> str:
    """A rate of arithmetic: 784e12 -> "784 TFLOP/s"."""
    return _scaled(value, 1000.0, tuple(f"{prefix}FLOP/s" for prefix in _SI))


def bytes_(value: float) -> str:
    """A size: 8_482_560_410 -> "7.9 GiB"."""
    return _scaled(value, 1024.0, _BINARY)


def bandwidth(value: float) -> str:
    """A rate of bytes, in SI like every datasheet: 4.26e12 -> "4.26 TB/s"."""
    return _scaled(value, 1000.0, tuple(f"{prefix}B/s" for prefix in _SI))


def seconds(value: float) -> str:
    """0.0123 -> "12.3 ms"; from a minute on "2 min 5 s", from an hour on "1 h 3 min"."""
    if not math.isfinite(value):
        return _NOTHING
    if value < 0:
        return f"-{seconds(-value)}"
    if _rounded(value) < 60:
        return _small_seconds(value)
    whole = round(value)
    if whole < 3600:
        return _two(whole // 60, "min", whole % 60, "s")
    minutes = round(value / 60)
    return _two(minutes // 60, "h", minutes % 60, "min")


def plural(number: int, noun: str, plural_noun: str = "") -> str:
    """Return a number with its noun: 1 operator, 2 operators. `plural_noun` is for nouns with
    another plural: 2 processes."""
    return f"{number:,} {noun if number == 1 else plural_noun or f'{noun}s'}"


def percent(ratio: float) -> str:
    """0.953 -> "95.3 %"."""
    text = significant(ratio * 100)
    return text if text == _NOTHING else f"{text} %"


def _small_seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        # Rounded first, so that 999.7 ms reads "1 s" and never "1000 ms".
        if _rounded(value / scale) >= 1:
            return f"{significant(value / scale)} {unit}"
    return f"{significant(value / 1e-9)} ns"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    head = f"{large} {large_unit}"
    return f"{head} {small} {small_unit}" if small else head


def _rounded(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits - 1}e}")


def _scaled(value: float, base: float, names: tuple[str, ...]) -> str:
    if not math.isfinite(value):
        return _NOTHING
    power = 0
    # Compared after rounding, so that 999,600 reads "1 M" and never "1000 k".
    while power < len(names) - 1 and abs(_rounded(value, 4 if base == 1024.0 else 3)) >= base:
        value /= base
        power += 1
    # Between 1000 and 1023 of a binary unit a fourth digit is needed to write the integer at all.
    digits = 4 if abs(value) >= 1000 else 3
    return f"{significant(value, digits)} {names[power]}"


def parse_seconds(name: str, amount: str | float) -> float:
    """Return the seconds that a person wrote as a number, or as "90s", "500ms", "2m", "1h", "7d".

    Raise UsageError for anything else; `name` is the option or the argument it was given for."""
    seconds = 0.0
    if isinstance(amount, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", amount.strip())
        if match is not None and match[2] in ("", *_SECONDS):
            seconds = float(match[1]) * _SECONDS.get(match[2], 1.0)
    elif isinstance(amount, int | float) and not isinstance(amount, bool):
        seconds = float(amount)
    if not 0 < seconds < math.inf:
        raise UsageError(f"{name} {amount!r} is not a time", "write 90s, 500ms, 2m or seconds")
    return seconds


def parse_size(text: str) -> int:
    """Return the bytes that a person wrote as 80GiB, 80GB, 512MiB or 24g. Raise UsageError for
    anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)(b?)\s*", text.lower())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{text!r} is not an amount of memory", "write 80GiB, 24GB or 512MiB")
    number, letter, binary, unit = match.groups()
    base = 1000 if unit and not binary else 1024
    return int(float(number) * base ** " kmgtp".index(letter or " "))


def parse_share(name: str, text: str) -> float:
    """Return the share between 0 and 1 that a person wrote as 2% or 0.02. Raise UsageError for
    anything else; `name` is the option it was given for."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share < 1:
        raise UsageError(f"{name} {text!r} is not a share", "write 2% or 0.02")
    return share


MAX_LISTED_ITEMS = 6
"""Runs of ranks that are listed; a job may have thousands."""


def number_ranges(numbers: Sequence[int]) -> str:
    """Numbers in order, runs of three and more as "4 to 7"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = []
    for low, high in runs:
        texts += [str(low)] if low == high else [str(low), str(high)]
        if high - low > 1:
            texts[-2:] = [f"{low} to {high}"]
    return word_list(texts)


def word_list(texts: Sequence[str]) -> str:
    """a, b and c; "and 9 more" where there are too many."""
    if len(texts) > MAX_LISTED_ITEMS:
        return f"{', '.join(texts[:MAX_LISTED_ITEMS])} and {len(texts) - MAX_LISTED_ITEMS} more"
    return " and ".join((", ".join(texts[:-1]), texts[-1])) if len(texts) > 1 else "".join(texts)


def is_or_are(numbers: Sequence[int]) -> str:
    return "is" if len(numbers) == 1 else "are"


def rank_list(numbers: Sequence[int]) -> str:
    return f"rank{'s' * (len(numbers) != 1)} {number_ranges(numbers)}"


def rank_label_list(labels: Sequence[str]) -> str:
    """ "ranks 1 and 3" of "rank 1" and "rank 3"; files by their names."""
    numbers = [label.removeprefix("rank ") for label in labels]
    if all(n.isdecimal() and n != label for n, label in zip(numbers, labels, strict=True)):
        return rank_list([int(n) for n in numbers])
    return word_list(labels)
