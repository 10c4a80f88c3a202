"""Where the loader is made, in the program's own files."""

from ridgeline.diagnosis.case import Case
from ridgeline.records.run import LoaderSeen
from ridgeline.records.trace import Place
from ridgeline.source.reading.datasets import HandsOut, class_given, hands_out
from ridgeline.source.reading.loader_call import LoaderCall, loader_call


def made_at(case: Case, loader: LoaderSeen | None) -> LoaderCall | None:
    seen = case.capture.loaders_made if case.capture is not None else ()
    return loader_call(case.sources, program_files(case), loader, seen)


def handing_out(case: Case, loader: LoaderSeen | None) -> HandsOut | None:
    """The dataset, where it hands out its samples itself (an IterableDataset); None: it is asked
    for them by number, or nothing tells."""
    files = [*program_files(case), *_of_lines(case)]
    name = loader.dataset if loader is not None else ""
    if not name:
        call = made_at(case, loader)
        source = case.sources.get(call.place.file) if call is not None else None
        name = class_given(source, call.dataset()) if call is not None else ""
    return hands_out(case.sources, files, name) if name else None


def _of_lines(case: Case) -> list[str]:
    return [site.place.file for site in case.sites.ops if site.place is not None]


def shared_out(case: Case, loader: LoaderSeen | None, change: str) -> tuple[str, str]:
    """A change that gives a loader workers, with what its dataset needs for them; and what stands
    against it. Two copies of a dataset that hands out 640 samples hand out 1280 an epoch."""
    data = handing_out(case, loader)
    if data is None or data.shares:
        return change, ""
    return (
        f"{change}\n{data.shared()}",
        f"{data.name} hands out its samples itself: without the part for each worker, every worker "
        "hands out all of them",
    )


def taken_at(loader: LoaderSeen | None) -> Place | None:
    """Where batches are taken from it, as the hooks saw it."""
    if loader is None:
        return None
    file, _, line = loader.place.rpartition(":")
    return Place(file=file, line=int(line)) if file and line.isdecimal() else None


def program_files(case: Case) -> list[str]:
    """Of the program, as far as anything seen names them; those nearest the loader first."""
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
