"""Work of the loader that gives the same result each time a sample is read."""

import re

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._batch_lines import batch_lines
from ridgeline.diagnosis.rules._input_places import program_files
from ridgeline.diagnosis.rules._loaders import loaders_seen
from ridgeline.diagnosis.rules._reading import decodes_too, reading_lines
from ridgeline.records.python_view import PythonLine
from ridgeline.source.reading.collation import collating
from ridgeline.source.reading.randomness import draws

_UNKNOWN = re.compile(r"(?:transform|augment|random|compose|collate)", re.IGNORECASE)
"""Library functions that may draw random numbers, whatever their caller's source says."""
_DECODES = re.compile(
    r"(?:decode|loads?|parse|parser|token|encode_plus|convert|imread|imdecode|unpack|decompress"
    r"|fromstring|frombuffer|genfromtxt|loadtxt|read_csv|reader|strptime|split|literal_eval)",
    re.IGNORECASE,
)


def epochs(case: Case) -> int:
    """How often the loader that feeds the program was begun while it was looked at."""
    return max((loader.epochs for loader in loaders_seen(case) if loader.batches), default=0)


def repeated_lines(case: Case) -> tuple[PythonLine, ...]:
    """Lines whose function draws no random number, nor any the sample went through before; those
    that put samples together are not: other samples meet in the next epoch."""
    if epochs(case) < 2:
        return ()
    reading = [line for line in reading_lines(case) if not decodes_too(line)]
    reads = {(line.file, line.line) for line in reading}
    lines = [line for line in batch_lines(case) if (line.file, line.line) not in reads]
    random = any(draws(case.sources, line.file, line.line) is not False for line in lines)
    files = [*program_files(case), *(line.file for line in lines)]
    batches = collating(case.sources, files)
    samples = [line for line in lines if line.function.rpartition(".")[2] not in batches]
    return tuple(line for line in samples if _same(case, line, random))


def repeated_share(case: Case) -> float:
    return sum(line.share for line in repeated_lines(case))


def _same(case: Case, line: PythonLine, random: bool) -> bool:
    """Where any function on the way draws, what it hands on differs: then only what decodes, and
    so comes before all else, is the same each time."""
    if draws(case.sources, line.file, line.line) is not False or _UNKNOWN.search(line.calls):
        return False
    return not random or bool(_DECODES.search(f"{line.source} {line.calls}"))
