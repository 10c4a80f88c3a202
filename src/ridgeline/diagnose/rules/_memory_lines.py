"""The user's files a run or a trace tells of, and the lines in them that keep tensors."""

from collections.abc import Iterator
from pathlib import Path

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.source.kept import Kept, kept
from ridgeline.diagnose.source.sources import Source


def user_sources(case: Case) -> tuple[Source, ...]:
    """Each file once, the script first."""
    found: dict[str, Source] = {}
    for file in _files(case):
        source = case.sources.get(file)
        if source is not None and source.text not in found:
            found[source.text] = source
    return tuple(found.values())


def kept_lines(case: Case) -> tuple[Kept, ...]:
    """Those with a graph first, then those that never let go."""
    found = [one for source in user_sources(case) for one in kept(source)]
    return tuple(sorted(found, key=lambda one: (not one.graph, one.guessed, one.renewed)))


def _files(case: Case) -> Iterator[str]:
    if case.run is not None and case.run.target.kind == "script":
        yield str(Path(case.run.environment.directory) / case.run.target.name)
    capture = case.capture
    if capture is not None:
        places = [seen.place for seen in capture.modules]
        places += [seen.place for seen in capture.optimizers]
        places += [seen.place for seen in capture.loaders]
        yield from (place.rpartition(":")[0] for place in places)
    for site in case.sites.ops:
        if site.place is not None:
            yield site.place.file
