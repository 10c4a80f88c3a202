"""The lines that make batches, as far as anything saw them.

In the program's own process the trace saw every call: functions and what they call, whose lines the
source tells. Samples are second there: without a shorter switch interval, which a plain run does
not touch, they fall on lines that let go of the interpreter's lock, such as `torch.tensor(values)`
instead of the loop that made the values. In workers only samples are known.
"""

import ast
import re
from collections import defaultdict

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._loaders import loaders_seen, program_files
from ridgeline.records.run import PythonLine
from ridgeline.records.sites import InputSite
from ridgeline.source.calls import calls_at
from ridgeline.source.datasets import draws_random_numbers
from ridgeline.source.file import SourceFile, calls_in, last_name
from ridgeline.source.loaders import collating

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
