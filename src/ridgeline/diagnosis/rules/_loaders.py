"""The DataLoaders that were seen, how long their workers take to start, and the lines that make
batches.

In the program's own process the trace saw every call: functions and what they call, whose lines the
source tells. Samples are second there: without a shorter switch interval, which a plain run does
not touch, they fall on lines that release the interpreter's lock, such as `torch.tensor(values)`
instead of the loop that made the values. In workers only samples are known.
"""

import ast
import re
from collections import defaultdict
from pathlib import PurePath
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._user_code import files_of, fix_code, option, place_at
from ridgeline.records.run import LoaderSeen, PythonLine, Step
from ridgeline.records.sites import InputSite
from ridgeline.records.trace import Place
from ridgeline.source.calls import calls_at
from ridgeline.source.datasets import (
    IterableData,
    dataset_class,
    draws_random_numbers,
    iterable_data,
)
from ridgeline.source.file import SourceFile, calls_in, last_name
from ridgeline.source.loaders import LoaderCall, collating, loader_call

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


MIN_SAMPLES = 15
"""Fewer samples tell nothing about where the time goes."""
_COMPREHENSION = re.compile(r"^<(?:listcomp|dictcomp|setcomp|genexpr)>$")


def batch_lines(case: Case) -> tuple[PythonLine, ...]:
    """Return the lines, the costliest first. Shares are of the time that making a batch takes."""
    asked = case.run is not None and case.run.settings.python
    view = case.python.input if case.python is not None else None
    sampled = view is not None and view.main_samples + view.worker_samples >= MIN_SAMPLES
    here = case.input.kind in ("single", "by hand") and case.input.sites
    if here and not (asked and sampled):
        return _traced(case)
    if view is None or not sampled:
        return ()
    return tuple(line for line in view.lines if line.file)


def _traced(case: Case) -> tuple[PythonLine, ...]:
    whole = max(case.input.ns, sum(site.place.ns for site in case.input.sites), 1.0)
    steps = case.study.window.steps if case.study is not None else 1
    found = []
    for site in case.input.sites:
        for (number, calls), ns in _by_line(case, site).items():
            source = case.sources.get(site.place.file)
            found.append(
                PythonLine(
                    file=site.place.file,
                    line=number,
                    function=_qualified(source, site),
                    source=source.line(number) if source is not None else "",
                    share=ns / whole,
                    total_share=ns / whole,
                    seconds=ns * max(steps, 1) / 1e9,
                    calls=calls,
                )
            )
    return tuple(sorted(found, key=lambda line: -line.share))


def _qualified(source: SourceFile | None, site: InputSite) -> str:
    """Return the function's name with its classes, such as `Pictures.__getitem__`: a trace has the
    last part alone. A comprehension is a part of the function it stands in."""
    scope = source.scope(site.place.line) if source is not None else None
    around = source.parents(scope) if source is not None and scope is not None else ()
    named = [node.name for node in around if isinstance(node, ast.ClassDef)]
    name = site.place.function
    if _COMPREHENSION.match(name) and source is not None:
        name = getattr(scope, "name", "<module>")
    return ".".join([*reversed(named), name])


def _by_line(case: Case, site: InputSite) -> dict[tuple[int, str], float]:
    """Return the time of each call, by its line. Time that is in no call, or in one that the source
    does not show (an operator's method), counts for the costliest line."""
    lines: defaultdict[int, float] = defaultdict(float)
    calls: dict[int, str] = {}
    for callee in site.callees:
        at = calls_at(case.sources, site.place, {callee.name})
        if at:
            lines[at[0].line] += callee.ns
            named = f"{callee.within}.{callee.name}" if callee.within else callee.name
            calls.setdefault(at[0].line, named)
    rest = site.place.ns - sum(lines.values())
    if not lines:
        first = site.callees[0] if site.callees else None
        named = f"{first.within}.{first.name}" if first is not None and first.within else ""
        return {(_deepest(case, site), named): float(site.place.ns)}
    most = max(lines, key=lambda number: lines[number])
    if rest > lines[most]:  # the function's own Python takes more than any call
        most = _deepest(case, site)
    lines[most] += max(rest, 0.0)
    return {(number, calls.get(number, "")): ns for number, ns in lines.items()}


def _deepest(case: Case, site: InputSite) -> int:
    """Return the first line of the innermost loop, where a function spends most of its time; else
    the line where the function begins."""
    source = case.sources.get(site.place.file)
    if source is None:
        return site.place.line
    nodes = [n for n in source.walk(source.scope(site.place.line)) if hasattr(n, "lineno")]
    looped = [(-source.loops(n), n.lineno) for n in nodes if source.loops(n)]
    return min(looped)[1] if looped else site.place.line


_OPENS = {"open", "read", "read_bytes", "read_text", "readinto", "readline", "readlines",
          "fromfile", "stat", "exists", "is_file", "isfile", "listdir", "iterdir", "scandir",
          "glob", "getsize", "pread", "imread"}  # fmt: skip
_PLACES = re.compile(
    r"^(?:pathlib|os|posixpath|genericpath|ntpath|io|_io|codecs|glob|fnmatch|tempfile|shutil)\."
    r"|^PIL\.Image\.open$|\.(?:read_bytes|read_text|open|imread)$"
    r"|^numpy\.(?:lib\.(?:_?npyio(?:_impl)?\.)?)?load$|^torch\.(?:serialization\.)?load$"
)
"""Library functions whose time is the file system's, or begins there."""
_LOADS = re.compile(r"\b(?:np|numpy|torch)\.load\s*\(")
_PARSES = re.compile(r"\b_?(?:json|pickle)\.(?:__init__\.)?load\b")
"""Calls that read a file that is open already. They count where the same function opens it."""
_DECODES_TOO = re.compile(r"imread|\b_?(?:json|pickle)\.|\btorch\.(?:serialization\.)?load")


def reading_lines(case: Case) -> tuple[PythonLine, ...]:
    """Return the user's lines that open or read files, the costliest first."""
    return tuple(line for line in batch_lines(case) if _reads(case, line))


def reading_share(case: Case) -> float:
    """Return the share of the making of batches that goes to reading files."""
    return sum(line.share for line in reading_lines(case))


def decodes_too(line: PythonLine) -> bool:
    """Return whether what reads the file also decodes it: the time is then of both."""
    return bool(_DECODES_TOO.search(f"{line.source} {line.calls}"))


def _reads(case: Case, line: PythonLine) -> bool:
    if _PARSES.search(f"{line.calls} {line.source}") and "loads" not in line.calls:
        return _opens(case, line)
    if "." in line.calls:  # a library function
        return bool(_PLACES.search(line.calls))
    if line.calls:  # a built-in function
        return line.calls in _OPENS or (line.calls == "load" and bool(_LOADS.search(line.source)))
    return bool(_called(line.source) & _OPENS or _LOADS.search(line.source))


def _opens(case: Case, line: PythonLine) -> bool:
    """Return whether the function around the line opens a file."""
    if "open" in _called(line.source):
        return True
    source = case.sources.get(line.file)
    around = source.walk(source.scope(line.line)) if source is not None else ()
    calls = [node.func for node in around if isinstance(node, ast.Call)]
    return any((getattr(f, "id", "") or getattr(f, "attr", "")) == "open" for f in calls)


def _called(text: str) -> set[str]:
    """Return the names called in a line, which may be half a statement."""
    try:
        tree: ast.AST = ast.parse(text.rstrip(" :") + (":\n pass" if text.endswith(":") else ""))
    except SyntaxError:
        return set(re.findall(r"(\w+)\s*\(", text))
    return {last_name(call) for call in calls_in(tree)}


_UNKNOWN = re.compile(r"(?:transform|augment|random|compose|collate)", re.IGNORECASE)
"""Library functions that may draw random numbers, whatever their caller's source says."""
_DECODES = re.compile(
    r"(?:decode|loads?|parse|parser|token|encode_plus|convert|imread|imdecode|unpack|decompress"
    r"|fromstring|frombuffer|genfromtxt|loadtxt|read_csv|reader|strptime|split|literal_eval)",
    re.IGNORECASE,
)


def epochs(case: Case) -> int:
    """Return how often the loader that feeds the program was begun while it was watched."""
    return max((loader.epochs for loader in loaders_seen(case) if loader.batches), default=0)


def repeated_lines(case: Case) -> tuple[PythonLine, ...]:
    """Return the lines whose function draws no random number, and gets none from a function that
    the sample went through before. Lines that put samples together are left out: other samples meet
    in the next epoch."""
    if epochs(case) < 2:
        return ()
    reading = [line for line in reading_lines(case) if not decodes_too(line)]
    reads = {(line.file, line.line) for line in reading}
    lines = [line for line in batch_lines(case) if (line.file, line.line) not in reads]
    random = any(
        draws_random_numbers(case.sources, line.file, line.line) is not False for line in lines
    )
    files = [*program_files(case), *(line.file for line in lines)]
    batches = collating(case.sources, files)
    samples = [line for line in lines if line.function.rpartition(".")[2] not in batches]
    return tuple(line for line in samples if _same(case, line, random))


def repeated_share(case: Case) -> float:
    return sum(line.share for line in repeated_lines(case))


def _same(case: Case, line: PythonLine, random: bool) -> bool:
    """Return whether a line gives the same result each time. If any function on the way draws
    numbers, only decoding, which comes before all else, is the same each time."""
    if draws_random_numbers(case.sources, line.file, line.line) is not False or _UNKNOWN.search(
        line.calls
    ):
        return False
    return not random or bool(_DECODES.search(f"{line.source} {line.calls}"))
