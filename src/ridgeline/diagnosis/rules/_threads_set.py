"""Where the program sets how many threads its workers have."""

import ast

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._input import feeder
from ridgeline.diagnosis.rules._input_places import made_at, program_files
from ridgeline.records.trace import Place
from ridgeline.source.reading.calls import SourceCall, all_calls
from ridgeline.source.reading.sources import Source

_NAMES = ("set_num_threads", "setNumThreads", "threadpool_limits", "set_num_interop_threads")


class ThreadsSet(Struct, frozen=True):
    place: Place
    change: str
    number: int
    """1 where the source does not tell."""
    in_workers: bool


def threads_set(case: Case) -> ThreadsSet | None:
    """In the function a loader's `worker_init_fn` names, else in any but the program's main part;
    None where no source shows it."""
    call = made_at(case, feeder(case))
    init = _init_function(call.text) if call is not None else ""
    found: list[tuple[bool, Source, SourceCall]] = []
    for file in dict.fromkeys(program_files(case)):
        source = case.sources.get(file)
        if source is not None:
            calls = all_calls(source, _NAMES)
            found += [(_function(source, one.line) == init, source, one) for one in calls]
    if not found:
        return None
    inside, source, one = max(found, key=lambda each: (each[0], -each[2].line))
    if not inside and init:
        return None
    name = one.text.partition("(")[0]
    function = _function(source, one.line)
    place = Place(file=source.file, line=one.line, function=function)
    return ThreadsSet(place, f"{name}(1)", _number(one.text, case), bool(init) and inside)


def _number(text: str, case: Case) -> int:
    """A number as written, or all processors."""
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return 1
    given = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if isinstance(given, ast.Constant) and isinstance(given.value, int):
        return max(given.value, 1)
    every = "cpu_count" in text or "sched_getaffinity" in text
    return max(case.run.environment.cores, 1) if every and case.run is not None else 1


def _function(source: Source | None, line: int) -> str:
    scope = source.scope(line) if source is not None else None
    return scope.name if isinstance(scope, ast.FunctionDef) else "<module>"


def _init_function(text: str) -> str:
    try:
        nodes = ast.walk(ast.parse(text))
    except SyntaxError:
        return ""
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg == "worker_init_fn":
            return ast.unparse(node.value).rpartition(".")[2]
    return ""
