"""Ranks in a sentence: "0 to 3 and 7", "rank 3", "ranks 1 and 3"."""

from collections.abc import Sequence

MOST = 6
"""Runs of ranks that are listed; a job may have thousands."""


def listed(numbers: Sequence[int]) -> str:
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
    return joined(texts)


def joined(texts: Sequence[str]) -> str:
    """a, b and c; "and 9 more" where there are too many."""
    if len(texts) > MOST:
        return f"{', '.join(texts[:MOST])} and {len(texts) - MOST} more"
    return " and ".join((", ".join(texts[:-1]), texts[-1])) if len(texts) > 1 else "".join(texts)


def are(numbers: Sequence[int]) -> str:
    return "is" if len(numbers) == 1 else "are"


def ranks_named(numbers: Sequence[int]) -> str:
    return f"rank{'s' * (len(numbers) != 1)} {listed(numbers)}"


def labels_named(labels: Sequence[str]) -> str:
    """ "ranks 1 and 3" of "rank 1" and "rank 3"; files by their names."""
    numbers = [label.removeprefix("rank ") for label in labels]
    if all(n.isdecimal() and n != label for n, label in zip(numbers, labels, strict=True)):
        return ranks_named([int(n) for n in numbers])
    return joined(labels)
