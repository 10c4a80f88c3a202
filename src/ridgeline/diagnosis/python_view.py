"""Where the host's Python time went: sampled stacks, by line and function of the user's code.

A sample belongs to the innermost frame that is the user's: library code is the time of the line
that called it. In a worker without any such frame (a library's dataset, the default collation) it
belongs to the function the worker called. Waiting for an index is a worker's idle time, and no part
of the shares. Our own hooks and the program's imports are in no figure at all.
"""

import ast
import math
import os
import re
import sysconfig
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from typing import Literal, NamedTuple

from ridgeline.diagnosis.hand_fed import feeds
from ridgeline.harness.capture import places
from ridgeline.records.run import InputLines, PythonLine, PythonView, Sampled

_PACKAGED = re.compile(r"^.*[/\\](?:site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]")
_COMPREHENSION = re.compile(r"(?:(?:\.<locals>)?\.<(?:listcomp|dictcomp|setcomp|genexpr)>)+$")
_WAITING = re.compile(
    r"[/\\](?:threading|queue|selectors|multiprocessing[/\\](?:queues|connection|synchronize))\.py$"
)
_PLUMBING = re.compile(
    r"(?:^|\.)(?:_wrapped_call_impl|_call_impl|wrapper|wrapped|_wrapped|inner|_fn|_use_grad|"
    r"decorate_context|decorate_autocast|__torch_function__|contextmanager|call_wrapped)$"
)
"""Functions that only hand on: what they call is what the user called."""
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_HOOKS = os.path.join(_OURS, "harness", "capture", "")
_HANDS_ON = re.compile(r"(?:[.]zero_grad|WorkerLoop[.]__call__)$")
"""Of our own frames: beneath these runs what the program asked for."""
LOADER_WAIT = "DataLoader, waiting for a batch"
_TYPED = ("<string>", "<stdin>")


class Frame(NamedTuple):
    file: str
    line: int
    function: str


HOOK = Frame("<ridgeline>", 0, "")
"""Stands for our own hooks where they are at work."""


def frames_of(stack: Iterable[str]) -> list[Frame]:
    """Those that can be read; a comprehension is its function's line."""
    found = []
    for text in stack:
        file, _, rest = text.rpartition(":")
        file, _, line = file.rpartition(":")
        if file and line.isdecimal() and len(line) < 10 and not file.startswith(_OURS):
            # the dot: at the top of a module a comprehension's name has none before it
            function = _COMPREHENSION.sub("", f".{rest}")[1:] or "<module>"
            found.append(Frame(file, int(line), function))
        elif file.startswith(_HOOKS) and not _HANDS_ON.search(rest):
            found.append(HOOK)
    return found


def is_not_the_programs(beneath: Sequence[Frame]) -> bool:
    """Whether what the user's line called is our own hook, or the import system: start-up."""
    importing = any(frame.file.startswith("<frozen importlib.") for frame in beneath[:2])
    return importing or HOOK in beneath


@cache
def is_users(file: str) -> bool:
    """Whether a file is in no library, torch's own sources and what it generates included."""
    return places.own(file) and "torchinductor_" not in file and not file.startswith(_torchs())


@cache
def is_not_core(file: str) -> bool:
    """Whether it is neither torch's nor the standard library's: a library run as a program is its
    user's own."""
    if "torchinductor_" in file or file.startswith(("<", *_torchs())):
        return False
    packaged = "site-packages" in file or "dist-packages" in file
    return packaged or not os.path.realpath(file).startswith(_standard())


def owner(stacks: Iterable[Sequence[Frame]]) -> Callable[[str], bool]:
    """Who the user is, as far as the stacks show it."""
    typed = known = False
    for frames in stacks:
        # Code given by -c has no file; a dataclass's made functions bear that name elsewhere too.
        typed |= bool(frames) and frames[0].file in _TYPED and frames[0].function == "<module>"
        known |= any(is_users(frame.file) for frame in frames)
    if typed:
        return lambda file: file in _TYPED or is_users(file)
    return is_users if known else is_not_core


def called(frames: Sequence[Frame]) -> str:
    """What the user's line called, from the library frames beneath it: PIL.Image.Image.resize."""
    if not frames:
        return ""
    if is_loader_wait(frames):
        return LOADER_WAIT
    telling = next((f for f in frames if not _PLUMBING.search(f.function)), frames[-1])
    return named(telling)


def is_loader_wait(frames: Sequence[Frame]) -> bool:
    """The program wants the next batch, and no worker has one."""
    asked = any(
        f.function.endswith("DataLoaderIter.__next__") and f.file.endswith("dataloader.py")
        for f in frames
    )
    return asked and _WAITING.search(frames[-1].file) is not None


def is_idle_worker(frames: Sequence[Frame]) -> bool:
    """A worker without an index to fetch: straight from its loop into the queue."""
    return len(frames) > 1 and is_worker_loop(frames[0]) and bool(_WAITING.search(frames[1].file))


def is_worker_loop(frame: Frame) -> bool:
    return frame.function == "_worker_loop" and frame.file.endswith("worker.py")


def is_fetching(frame: Frame) -> bool:
    """The loader's own way from the worker's loop to the dataset."""
    return is_worker_loop(frame) or bool(re.search(r"[/\\]_utils[/\\]fetch\.py$", frame.file))


def named(frame: Frame) -> str:
    """module.function, as one would import it."""
    file = frame.file
    if file.startswith("<"):
        module = file.strip("<>").removeprefix("frozen ")
    elif _PACKAGED.match(file):
        module = re.sub(r"[/\\]", ".", _PACKAGED.sub("", file))
    else:
        module = re.split(r"[/\\]", file)[-1]
    module = module.removesuffix(".py").removesuffix(".__init__")
    return f"{module}.{frame.function.replace('<locals>.', '')}"


@cache
def _torchs() -> tuple[str, ...]:
    """Torch's folder, which may be a checkout; found without importing it."""
    try:
        spec = PathFinder.find_spec("torch")
    except Exception:  # a path entry that cannot be read: torch's frames count as a library's
        return ()
    return tuple(f"{path}{os.sep}" for path in (spec and spec.submodule_search_locations) or ())


@cache
def _standard() -> tuple[str, ...]:
    found = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib")}
    return tuple(f"{os.path.realpath(path)}{os.sep}" for path in found if path)


_LARGEST = 4 * 2**20
_WIDEST = 200


def text_of(file: str, line: int) -> str:
    """The line without its indent; "" where it cannot be read."""
    lines = _source_lines(file)
    return lines[line - 1].strip()[:_WIDEST] if 0 < line <= len(lines) else ""


def beginning_of(file: str, line: int, function: str) -> int | None:
    """The line of `def` of a function that is known by its qualified name and a line in it."""
    if function == "<module>":
        return 1
    around = [
        start
        for name, start, end in _source_functions(file)
        if name == function and start <= line <= end
    ]
    return max(around, default=None)


@lru_cache(maxsize=64)
def _source_lines(file: str) -> tuple[str, ...]:
    try:
        # Only a regular file: reading a pipe or a terminal would wait for ever.
        if not os.path.isfile(file) or os.path.getsize(file) > _LARGEST:
            return ()
        with tokenize.open(file) as opened:
            return tuple(opened.read().splitlines())
    except (OSError, SyntaxError, ValueError):
        return ()


@lru_cache(maxsize=64)
def _source_functions(file: str) -> tuple[tuple[str, int, int], ...]:
    try:
        return tuple(_functions_within(ast.parse("\n".join(_source_lines(file))), ""))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def _functions_within(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            name = prefix + ("<lambda>" if isinstance(child, ast.Lambda) else child.name)
            yield name, child.lineno, child.end_lineno or child.lineno
            yield from _functions_within(child, f"{name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions_within(child, f"{prefix}{child.name}.")
        else:
            yield from _functions_within(child, prefix)


MOST = 30


def input_lines(
    stacks: Iterable[tuple[Literal["main", "worker"], list[Frame], int]],
    interval_ns: float,
    users: Callable[[str], bool],
    text: Callable[[str, int], str],
) -> InputLines:
    """`stacks`: process, frames outermost first, times seen."""
    own: Counter[tuple[Frame, str]] = Counter()
    total: Counter[Frame] = Counter()
    calls: defaultdict[Frame, Counter[str]] = defaultdict(Counter)
    samples: Counter[str] = Counter()
    for process, frames, times in stacks:
        beneath = _making(process, frames, users)
        if beneath is None:
            continue
        samples[process] += times
        at = [place for place, frame in enumerate(beneath) if users(frame.file)]
        if not at:  # a library's dataset, the default collation
            frame, rest = Frame("", 0, ""), beneath
        else:
            frame, rest = beneath[at[-1]], beneath[at[-1] + 1 :]
        own[frame, process] += times
        calls[frame][called(rest)] += times
        for one in {beneath[i] for i in at}:
            total[one] += times
    whole = sum(samples.values())
    lines = [
        PythonLine(
            file=frame.file,
            line=frame.line,
            function=frame.function,
            source=text(frame.file, frame.line) if frame.file else "",
            process="worker" if process == "worker" else "main",
            share=times / whole,
            total_share=max(total[frame], times) / whole,
            seconds=times * interval_ns / 1e9,
            calls=calls[frame].most_common(1)[0][0],
        )
        for (frame, process), times in own.most_common(MOST)
    ]
    functions = sorted({(f.file, f.function) for f in total})
    return InputLines(
        main_samples=samples["main"],
        worker_samples=samples["worker"],
        lines=tuple(lines),
        functions=tuple(f"{file}:{function}" for file, function in functions)[:MOST],
    )


def _making(
    process: str, frames: Sequence[Frame], users: Callable[[str], bool]
) -> Sequence[Frame] | None:
    """What runs beneath the loader, or in a function that makes batches by its name; None: no
    batch is being made."""
    if HOOK in frames:
        return None
    fetching = [at for at, frame in enumerate(frames) if is_fetching(frame)]
    fetches = [at for at in fetching if not is_worker_loop(frames[at])]
    if process == "worker":
        if not fetches or is_idle_worker(frames):
            return None
        beneath = frames[fetches[-1] + 1 :]
    elif fetches:
        beneath = frames[fetches[-1] + 1 :]
    else:
        by_hand = [
            at
            for at, frame in enumerate(frames)
            if users(frame.file) and feeds(frame.function.rpartition(".")[2])
        ]
        if not by_hand:
            return None
        beneath = frames[by_hand[0] :]
    return None if is_not_the_programs(beneath) else beneath


MOST_LINES = 50
HALF_A_LINE_NS = 500_000_000
"""A line is written each second: one that is half of the time before is left out."""
_FEW, _MANY = 3, 10
"""Samples: a row of fewer than `_FEW` is chance, and left out beside one of `_MANY`."""

Process = Literal["main", "worker"]
PROCESSES: tuple[Process, ...] = ("main", "worker")
_Row = tuple[int, PythonLine]
"""The samples it is from."""


class _Tally:
    """The samples of one kind of process."""

    def __init__(self) -> None:
        self.samples = 0
        self.idle = 0
        self.ns = 0.0
        self.own: Counter[Frame] = Counter()
        self.total: Counter[Frame] = Counter()
        self.total_functions: Counter[tuple[str, str]] = Counter()
        self.calls: defaultdict[Frame, Counter[str]] = defaultdict(Counter)

    @property
    def interval_ns(self) -> float:
        return self.ns / self.samples if self.samples else 0.0

    def leave_out(self, times: int) -> None:
        self.ns -= times * self.interval_ns
        self.samples = max(self.samples - times, 0)

    def add(self, path: Sequence[Frame], beneath: Sequence[Frame], times: int) -> None:
        """`path`: the user's frames; `beneath`: the library's that the last of them called."""
        self.own[path[-1]] += times
        self.calls[path[-1]][called(beneath)] += times
        for frame in set(path):
            self.total[frame] += times
        for function in {(frame.file, frame.function) for frame in path}:
            self.total_functions[function] += times


def settled(sampled: Sequence[Sampled], since_ns: int) -> tuple[Sampled, ...]:
    """Lines written once the program had settled: before, workers wait for its first step. All of
    them where the program was too short for that."""
    found = tuple(line for line in sampled if line.at_ns - HALF_A_LINE_NS >= since_ns)
    return found or tuple(sampled)


def python_view(
    sampled: Sequence[Sampled],
    own: Callable[[str], bool] | None = None,
    text: Callable[[str, int], str] = text_of,
) -> PythonView:
    """`own`: whether a file is the user's, told from the stacks if not given; `text`: the source
    of a line."""
    stacks: dict[Process, Counter[tuple[str, ...]]] = {kind: Counter() for kind in PROCESSES}
    tallies = {kind: _Tally() for kind in PROCESSES}
    for record in sampled:
        tallies[record.process].ns += max(record.samples, 0) * max(record.interval_ns, 0)
        tallies[record.process].samples += max(record.samples, 0)
        for frames, times in record.stacks:
            stacks[record.process][frames] += max(times, 0)
    read = {kind: _read(kind, stacks[kind]) for kind in PROCESSES}
    users = own or owner(frames for kind in PROCESSES for frames, _ in read[kind])
    for kind in PROCESSES:
        _fill(tallies[kind], kind, read[kind], users)
    main, worker = tallies["main"], tallies["worker"]
    samples = main.samples + worker.samples
    return PythonView(
        main_samples=main.samples,
        worker_samples=worker.samples,
        worker_idle_samples=worker.idle,
        workers=len({s.worker if s.worker >= 0 else -s.pid for s in sampled if _works(s)}),
        interval_ns=round((main.ns + worker.ns) / samples) if samples else 0,
        lines=_costliest([row for kind in PROCESSES for row in _lines(tallies[kind], kind, text)]),
        functions=_costliest(
            [row for kind in PROCESSES for row in _functions(tallies[kind], kind, text)]
        ),
        input=input_lines(
            ((kind, frames, times) for kind in PROCESSES for frames, times in read[kind]),
            (main.ns + worker.ns) / samples if samples else 0.0, users, text,
        ),
    )  # fmt: skip


def _works(record: Sampled) -> bool:
    return record.process == "worker"


def _read(kind: Process, stacks: Counter[tuple[str, ...]]) -> list[tuple[list[Frame], int]]:
    """A forked worker stands on its parent's stack: that part is not its own."""
    read = []
    for texts, times in stacks.items():
        frames = frames_of(texts)
        if kind == "worker":
            loops = [at for at, frame in enumerate(frames) if is_worker_loop(frame)]
            frames = frames[loops[-1] :] if loops else frames
        read.append((frames, times))
    return read


def _fill(
    tally: _Tally,
    kind: Process,
    stacks: Iterable[tuple[list[Frame], int]],
    users: Callable[[str], bool],
) -> None:
    for frames, times in stacks:
        at = [place for place, frame in enumerate(frames) if users(frame.file)]
        if is_not_the_programs(frames[at[-1] + 1 :] if at else frames):
            tally.leave_out(times)
        elif at:
            tally.add([frames[i] for i in at], frames[at[-1] + 1 :], times)
        elif kind == "worker" and is_idle_worker(frames):
            tally.idle += times
        elif kind == "worker":
            beyond = [frame for frame in frames if not is_fetching(frame)]
            if beyond:
                tally.add(beyond[:1], beyond[1:], times)


def _lines(tally: _Tally, kind: Process, text: Callable[[str, int], str]) -> Iterable[_Row]:
    whole = tally.samples - tally.idle
    for frame, times in tally.own.most_common(MOST_LINES):
        line = PythonLine(
            file=frame.file,
            line=frame.line,
            function=frame.function,
            source=text(frame.file, frame.line),
            process=kind,
            share=_share(times, whole),
            total_share=_share(tally.total[frame], whole),
            seconds=times * tally.interval_ns / 1e9,
            calls=tally.calls[frame].most_common(1)[0][0],
        )
        yield times, line


def _functions(tally: _Tally, kind: Process, text: Callable[[str, int], str]) -> Iterable[_Row]:
    whole = tally.samples - tally.idle
    grouped: defaultdict[tuple[str, str], list[Frame]] = defaultdict(list)
    for frame in tally.own:
        grouped[frame.file, frame.function].append(frame)
    for (file, function), frames in grouped.items():
        times = sum(tally.own[frame] for frame in frames)
        first = min(frame.line for frame in frames)
        begins = beginning_of(file, first, function) or first
        calls: Counter[str] = sum((tally.calls[frame] for frame in frames), Counter())
        line = PythonLine(
            file=file,
            line=begins,
            function=function,
            source=text(file, begins),
            process=kind,
            share=_share(times, whole),
            total_share=_share(tally.total_functions[file, function], whole),
            seconds=times * tally.interval_ns / 1e9,
            calls=calls.most_common(1)[0][0],
        )
        yield times, line


def _share(times: int, whole: int) -> float:
    return min(times / whole, 1.0) if whole > 0 else 0.0


def _costliest(rows: Sequence[_Row]) -> tuple[PythonLine, ...]:
    """By time. A line of the main process that waits for the loader comes after the worker's line
    it waits for."""
    fewest = _FEW if any(times >= _MANY for times, _ in rows) else 0
    lines = [line for times, line in rows if times >= fewest]
    slowest = max((line.seconds for line in lines if line.process == "worker"), default=math.inf)

    def place(line: PythonLine) -> tuple[float, bool, str, int]:
        waits = line.process == "main" and line.calls == LOADER_WAIT
        seconds = min(line.seconds, slowest) if waits else line.seconds
        return (-seconds, waits, line.file, line.line)

    return tuple(sorted(lines, key=place)[:MOST_LINES])
