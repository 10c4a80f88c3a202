"""The DataLoaders that were seen: where they are made, and how long their workers take to start."""

import re
from pathlib import PurePath
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._fix_code import fix_code, option
from ridgeline.diagnosis.rules._user_code import files_of, place_at
from ridgeline.records.run import LoaderSeen, Step
from ridgeline.records.trace import Place
from ridgeline.source.datasets import IterableData, dataset_class, iterable_data
from ridgeline.source.loaders import LoaderCall, loader_call

_FIXES = {
    "num_workers": "loader-workers",
    "persistent_workers": "persistent-workers",
    "pin_memory": "pin-memory",
}
"""The fix that sets each option of a loader."""
_Key = tuple[str, str, int, int | None, int | None]


def loaders_seen(case: Case) -> tuple[LoaderSeen, ...]:
    """Return the loaders. Equal ones that are begun once each at the same place count as one, with
    the epochs and batches of all of them."""
    groups: dict[_Key, list[LoaderSeen]] = {}
    kept = []
    for one in case.capture.loaders if case.capture is not None else ():
        if one.epochs == 1 and one.place:
            groups.setdefault(_key(one), []).append(one)
        else:
            kept.append(one)
    return (*kept, *(_together(group) for group in groups.values()))


def made_anew(case: Case, loader: LoaderSeen | None) -> bool:
    """Return whether a loader is made again in each epoch. Then nothing that it keeps outlives the
    epoch, its workers neither."""
    if loader is None or loader.epochs < 2 or case.capture is None:
        return False
    alike = [o for o in case.capture.loaders if o.epochs == 1 and _key(o) == _key(loader)]
    return len(alike) == loader.epochs


def once(call: str) -> str:
    """Return the call that makes the loader, moved out of the loop over the epochs."""
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


MIN_RESTARTS = 2
"""Beginnings of epochs. A single slow step has many possible reasons."""
MIN_RESTART_FACTOR = 0.25
"""Share of a median step that beginnings must take longer. Less is noise."""


class Restarts(Struct, frozen=True, kw_only=True):
    loader: LoaderSeen
    anew: bool = False
    """Whether the loader itself is made again in each epoch, and its workers with it."""
    epochs: int
    """Beginnings seen among untraced steps."""
    extra_ms: float
    """How much longer the first step of an epoch takes than the median step."""
    every: float
    """Steps from one beginning to the next."""
    share: float
    """Share of all time of the steps looked at."""
    input_share: float
    """The part of it that counts as input wait, as a share of the mean step."""


def restarts(case: Case) -> Restarts | None:
    again = [seen for seen in loaders_seen(case) if seen.workers and seen.epochs > MIN_RESTARTS]
    loader = max(again, key=lambda seen: seen.batches, default=None)
    anew = made_anew(case, loader)
    if loader is None or (loader.persistent_workers and not anew):
        return None
    light = [s for s in case.steps if s.window == "light" and s.detailed]
    first = {index for index in loader.begun if index}  # the very first is the program's start
    begins = [s for s in light if s.index in first]
    others = [s for s in light if s.index not in first]
    if len(begins) < MIN_RESTARTS or not others:
        return None
    usual, waited = median(_ms(s) for s in others), median(_input_ms(s) for s in others)
    extra = median(_ms(s) for s in begins) - usual
    if extra < MIN_RESTART_FACTOR * usual:
        return None
    whole = sum(_ms(s) for s in light)
    # New workers still start in the step after, and steps beside them are slower than alone.
    near = [s for s in light if s.index in first or s.index - 1 in first]
    calm = sorted(_ms(s) for s in light if s not in near) or [usual]
    lost = sum(max(_ms(s) - calm[len(calm) // 4], 0.0) for s in near)
    waits = sum(max(_input_ms(s) - waited, 0.0) for s in near)
    return Restarts(
        loader=loader,
        anew=anew,
        epochs=len(begins),
        extra_ms=extra,
        every=len(light) / len(begins),
        share=min(lost / whole, 1.0),
        input_share=min(waits / whole, 1.0),
    )


def _ms(step: Step) -> float:
    return step.dur_ns / 1e6


def _input_ms(step: Step) -> float:
    return step.host.get("input", 0) / 1e6


def made_at(case: Case, loader: LoaderSeen | None) -> LoaderCall | None:
    seen = case.capture.loaders_made if case.capture is not None else ()
    return loader_call(case.sources, program_files(case), loader, seen)


def loader_with(
    case: Case, place: Place | None, call: LoaderCall | None, **options: int | str
) -> str:
    """Return the call that makes the loader with these options, or a typical call if no source
    shows it. `place` is the finding's own line."""
    if call is not None and not call.trainers:
        fixes = (
            option(_FIXES[name], call.place, "DataLoader", name, value)
            for name, value in options.items()
        )
        if code := fix_code(case, place, *fixes):
            return code
    given = {name: str(value) for name, value in options.items()}
    rewritten = call.with_options(**given) if call is not None else ""
    if call is not None and rewritten:
        own = place is not None and (place.file, place.line) == (call.place.file, call.place.line)
        head = "" if own else f"# {PurePath(call.place.file).name}:{call.place.line}\n"
        return head + rewritten
    written = ", ".join(f"{name}={value}" for name, value in given.items())
    return f"loader = DataLoader(dataset, batch_size, {written})"


def handing_out(case: Case, loader: LoaderSeen | None) -> IterableData | None:
    """Return the dataset if it hands out its samples itself (an IterableDataset). Return None if it
    is asked for them by number, or if it is not known."""
    files = [*program_files(case), *files_of(case.sites.ops)]
    name = loader.dataset if loader is not None else ""
    if not name:
        call = made_at(case, loader)
        source = case.sources.get(call.place.file) if call is not None else None
        name = dataset_class(source, call.dataset) if call is not None else ""
    return iterable_data(case.sources, files, name) if name else None


def shared_out(case: Case, loader: LoaderSeen | None, change: str) -> tuple[str, str]:
    """Return a change that gives a loader workers, with what its dataset needs for them, and the
    doubt about it. Two copies of a dataset that hands out 640 samples hand out 1280 an epoch."""
    data = handing_out(case, loader)
    if data is None or data.shares:
        return change, ""
    return (
        f"{change}\n{data.shared()}",
        f"{data.name} hands out its samples itself: without the part for each worker, every worker "
        "hands out all of them",
    )


def taken_at(loader: LoaderSeen | None) -> Place | None:
    """Return where batches are taken from a loader, as the hooks saw it."""
    return place_at(loader.place) if loader is not None else None


def program_files(case: Case) -> list[str]:
    """Return the files of the program that anything names, those nearest the loader first."""
    found = []
    capture = case.capture
    if capture is not None:
        found += [place.file for one in capture.loaders if (place := taken_at(one)) is not None]
        seen = [m.place for m in capture.modules] + [o.place for o in capture.optimizers]
        found += [place.rpartition(":")[0] for place in seen]
    if case.run is not None and case.run.target.kind == "script":
        found.append(case.run.target.name)
    if case.python is not None:
        found += [line.file for line in case.python.input.lines]
        found += [line.file for line in case.python.lines]
    found += [site.place.file for site in case.input.sites]
    found += [place.file for cause in case.idle_causes("input") for place in cause.places]
    return found
