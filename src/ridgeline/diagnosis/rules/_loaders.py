"""The DataLoaders that were seen; those made anew in each epoch as the one they stand for."""

import re

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.records.run import LoaderSeen

_Key = tuple[str, str, int, int | None, int | None]


def loaders_seen(case: Case) -> tuple[LoaderSeen, ...]:
    """Those that are begun once each, at the same place and alike, are one: its epochs and batches
    are theirs together."""
    groups: dict[_Key, list[LoaderSeen]] = {}
    kept = []
    for one in case.capture.loaders if case.capture is not None else ():
        if one.epochs == 1 and one.place:
            groups.setdefault(_key(one), []).append(one)
        else:
            kept.append(one)
    return (*kept, *(_together(group) for group in groups.values()))


def made_anew(case: Case, loader: LoaderSeen | None) -> bool:
    """Whether `loader`, of those above, is made again in each epoch: then nothing it keeps, its
    workers neither, outlives the epoch."""
    if loader is None or loader.epochs < 2 or case.capture is None:
        return False
    alike = [o for o in case.capture.loaders if o.epochs == 1 and _key(o) == _key(loader)]
    return len(alike) == loader.epochs


def once(call: str) -> str:
    """The call that makes the loader, moved out of the loop over the epochs."""
    made = call if re.match(r"\s*[\w.]+\s*(?::[^=]*)?=[^=]", call) else f"loader = {call}"
    name = made.partition("=")[0].partition(":")[0].strip()
    return f"{made}  # once, before the loop over epochs\nfor epoch in …:\n    for batch in {name}:"


def _key(one: LoaderSeen) -> _Key:
    # A function that is given the loader has one place for training and evaluation: their
    # lengths tell them apart.
    return one.place, one.dataset, one.workers, one.batch_size, one.length


def _together(group: list[LoaderSeen]) -> LoaderSeen:
    return replace(
        group[0],
        epochs=sum(one.epochs for one in group),
        batches=sum(one.batches for one in group),
        training_batches=sum(one.training_batches for one in group),
        begun=tuple(sorted(index for one in group for index in one.begun)),
    )
