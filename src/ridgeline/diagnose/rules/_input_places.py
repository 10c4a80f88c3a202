"""Where the loader is made, in the program's own files."""

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.source.loader_call import LoaderCall, loader_call
from ridgeline.records.run import LoaderSeen
from ridgeline.records.trace import Place


def made_at(case: Case, loader: LoaderSeen | None) -> LoaderCall | None:
    return loader_call(case.sources, program_files(case), loader)


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
