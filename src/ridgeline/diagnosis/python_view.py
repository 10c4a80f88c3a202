"""Works out where the host's Python time went: sampled stacks, by line and function of the user's
code.

A sample belongs to the innermost frame that is the user's: library code is the time of the line
that called it. In a worker without any such frame (a library's dataset, the default collation) it
belongs to the function that the worker called. Waiting for an index is a worker's idle time, and no
part of the shares. Ridgeline's own hooks and the program's imports are in no figure at all.
"""

import math
import os
import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal, NamedTuple

from ridgeline.diagnosis.shares import feeds
from ridgeline.harness.capture import places
from ridgeline.records.run import InputLines, PythonLine, PythonView, Sampled
from ridgeline.records.run_page import PythonStacks, StackNode
from ridgeline.source.file import Function, SourceFile, parsed, text_of

MAX_LINES = 50
MAX_INPUT_LINES = 30
MAX_NODES = 2_000
"""Functions in a tree of stacks. Of more, most are narrower than a pixel."""
MAX_SOURCE_BYTES = 4 * 2**20
MAX_LINE_LENGTH = 200
HALF_A_LINE_NS = 500_000_000
"""The sampler writes a line each second. One is left out if half of its second was before the steps
that count."""
MIN_ROW_SAMPLES, MANY_SAMPLES = 3, 10
"""A row of fewer samples is chance, and is left out beside one of many samples."""
LOADER_WAIT = "DataLoader, waiting for a batch"

_PACKAGED = re.compile(r"^.*[/\\](?:site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]")
_COMPREHENSION = re.compile(r"(?:(?:\.<locals>)?\.<(?:listcomp|dictcomp|setcomp|genexpr)>)+$")
_WAITING = re.compile(
    r"[/\\](?:threading|queue|selectors|multiprocessing[/\\](?:queues|connection|synchronize))\.py$"
)
_PLUMBING = re.compile(
    r"(?:^|\.)(?:_wrapped_call_impl|_call_impl|wrapper|wrapped|_wrapped|inner|_fn|_use_grad|"
    r"decorate_context|decorate_autocast|__torch_function__|contextmanager|call_wrapped)$"
)
"""Functions that only pass a call on: what they call is what the user called."""
_RIDGELINE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_HOOKS = os.path.join(_RIDGELINE, "harness", "capture", "")
_PASSES_ON = re.compile(r"(?:[.]zero_grad|WorkerLoop[.]__call__)$")
"""Hooks beneath which the program's own work runs."""
_TYPED = ("<string>", "<stdin>")

Process = Literal["main", "worker"]
PROCESSES: tuple[Process, ...] = ("main", "worker")


class Frame(NamedTuple):
    file: str
    line: int
    function: str


HOOK = Frame("<ridgeline>", 0, "")
"""Stands for a hook of Ridgeline at work."""
Stacks = list[tuple[list[Frame], int]]
"""Frames, outermost first, and how often they were seen."""


def settled(sampled: Sequence[Sampled], since_ns: int) -> tuple[Sampled, ...]:
    """Return the lines written once the program had settled: before that, workers wait for its
    first step. Return all of them if the program was too short for that."""
    lines = tuple(line for line in sampled if line.at_ns - HALF_A_LINE_NS >= since_ns)
    return lines or tuple(sampled)


def python_view(sampled: Sequence[Sampled]) -> PythonView:
    texts: dict[Process, Counter[tuple[str, ...]]] = {kind: Counter() for kind in PROCESSES}
    tallies = {kind: _Tally(kind) for kind in PROCESSES}
    for record in sampled:
        tallies[record.process].ns += max(record.samples, 0) * max(record.interval_ns, 0)
        tallies[record.process].samples += max(record.samples, 0)
        for stack, times in record.stacks:
            texts[record.process][stack] += max(times, 0)
    stacks = {kind: _read(kind, texts[kind]) for kind in PROCESSES}
    users = _owner(frames for kind in PROCESSES for frames, _ in stacks[kind])
    for kind in PROCESSES:
        tallies[kind].fill(stacks[kind], users)
    main, worker = tallies["main"], tallies["worker"]
    samples = main.samples + worker.samples
    interval_ns = (main.ns + worker.ns) / samples if samples else 0.0
    workers = {s.worker if s.worker >= 0 else -s.pid for s in sampled if s.process == "worker"}
    return PythonView(
        main_samples=main.samples,
        worker_samples=worker.samples,
        worker_idle_samples=worker.idle,
        workers=len(workers),
        interval_ns=round(interval_ns),
        lines=_costliest([row for tally in tallies.values() for row in tally.lines()]),
        functions=_costliest([row for tally in tallies.values() for row in tally.functions()]),
        input=_input_lines(stacks, interval_ns, users),
    )


class _Tally:
    """The samples of one kind of process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.samples = 0
        self.idle = 0
        self.ns = 0.0
        self.own: Counter[Frame] = Counter()
        self.total: Counter[Frame] = Counter()
        self.total_functions: Counter[tuple[str, str]] = Counter()
        self.calls: defaultdict[Frame, Counter[str]] = defaultdict(Counter)

    def fill(self, stacks: Stacks, users: Callable[[str], bool]) -> None:
        for frames, times in stacks:
            own = [place for place, frame in enumerate(frames) if users(frame.file)]
            beneath = frames[own[-1] + 1 :] if own else frames
            if _is_ours_or_import(beneath):
                self.ns -= times * self._interval_ns
                self.samples = max(self.samples - times, 0)
            elif own:
                self._add([frames[place] for place in own], beneath, times)
            elif self.process == "worker" and _is_idle_worker(frames):
                self.idle += times
            elif self.process == "worker":
                called = [frame for frame in frames if not _is_fetching(frame)]
                if called:
                    self._add(called[:1], called[1:], times)

    def _add(self, path: Sequence[Frame], beneath: Sequence[Frame], times: int) -> None:
        """Add samples with the user's frames `path`, the last of which called `beneath`."""
        self.own[path[-1]] += times
        self.calls[path[-1]][_called(beneath)] += times
        for frame in set(path):
            self.total[frame] += times
        for function in {(frame.file, frame.function) for frame in path}:
            self.total_functions[function] += times

    @property
    def _interval_ns(self) -> float:
        return self.ns / self.samples if self.samples else 0.0

    def lines(self) -> list[tuple[int, PythonLine]]:
        """Return the user's lines, each with its number of samples."""
        return [
            self._row(frame, times, self.total[frame], self.calls[frame])
            for frame, times in self.own.most_common(MAX_LINES)
        ]

    def functions(self) -> list[tuple[int, PythonLine]]:
        """Return the user's functions, each with its number of samples and the line it begins
        at."""
        frames: defaultdict[tuple[str, str], list[Frame]] = defaultdict(list)
        for frame in self.own:
            frames[frame.file, frame.function].append(frame)
        rows = []
        for (file, function), own in frames.items():
            times = sum(self.own[frame] for frame in own)
            begin = _beginning(min(own, key=lambda frame: frame.line))
            calls: Counter[str] = sum((self.calls[frame] for frame in own), Counter())
            whole = self.total_functions[file, function]
            rows.append(self._row(Frame(file, begin, function), times, whole, calls))
        return rows

    def _row(
        self, frame: Frame, times: int, total: int, calls: Counter[str]
    ) -> tuple[int, PythonLine]:
        samples = max(self.samples - self.idle, 0)
        line = _line(frame, self.process, times, total, samples, self._interval_ns, calls)
        return times, line


def _line(
    frame: Frame,
    process: Process,
    times: int,
    total: int,
    samples: int,
    interval_ns: float,
    calls: Counter[str],
) -> PythonLine:
    return PythonLine(
        file=frame.file,
        line=frame.line,
        function=frame.function,
        source=_text(frame.file, frame.line),
        process=process,
        share=min(times / samples, 1.0) if samples else 0.0,
        total_share=min(total / samples, 1.0) if samples else 0.0,
        seconds=times * interval_ns / 1e9,
        calls=calls.most_common(1)[0][0],
    )


def _costliest(rows: Sequence[tuple[int, PythonLine]]) -> tuple[PythonLine, ...]:
    """Return the lines by time. A line of the main process that waits for the loader comes after
    the worker's line that it waits for."""
    fewest = MIN_ROW_SAMPLES if any(times >= MANY_SAMPLES for times, _ in rows) else 0
    lines = [line for times, line in rows if times >= fewest]
    slowest = max((line.seconds for line in lines if line.process == "worker"), default=math.inf)

    def order(line: PythonLine) -> tuple[float, bool, str, int]:
        waits = line.process == "main" and line.calls == LOADER_WAIT
        seconds = min(line.seconds, slowest) if waits else line.seconds
        return (-seconds, waits, line.file, line.line)

    return tuple(sorted(lines, key=order)[:MAX_LINES])


# ------------------------------------------------------------------------------------ trees


def python_stacks(sampled: Sequence[Sampled], limit: int = MAX_NODES) -> PythonStacks:
    """Return the stacks joined where they begin alike. Left out are samples of Ridgeline's own
    hooks, of imports, and of workers that wait; and functions beyond the `limit` with the fewest
    samples, which then count for their callers alone."""
    texts: dict[Process, Counter[tuple[str, ...]]] = {kind: Counter() for kind in PROCESSES}
    ns = samples = 0
    for record in sampled:
        ns += max(record.samples, 0) * max(record.interval_ns, 0)
        samples += max(record.samples, 0)
        for stack, times in record.stacks:
            texts[record.process][stack] += max(times, 0)
    stacks = {kind: _read(kind, texts[kind]) for kind in PROCESSES}
    users = _owner(frames for kind in PROCESSES for frames, _ in stacks[kind])
    counts: dict[tuple[Frame, ...], Counter[Process]] = {}
    whole: Counter[Process] = Counter()
    for process, frames, times in ((p, f, t) for p in PROCESSES for f, t in stacks[p]):
        idle = process == "worker" and _is_idle_worker(frames)
        if not frames or idle or _is_ours_or_import(frames):
            continue
        whole[process] += times
        path = tuple(
            frame if users(frame.file) else frame._replace(line=0)
            for frame in frames
            if not _PLUMBING.search(frame.function)
        )
        for depth in range(1, len(path) + 1):
            counts.setdefault(path[:depth], Counter())[process] += times
    kept = sorted(counts, key=lambda path: (-counts[path].total(), len(path)))[:limit]
    number: dict[tuple[Frame, ...], int] = {}
    nodes = []
    for path in sorted(kept, key=len):
        frame, own = path[-1], users(path[-1].file)
        parent = number.get(path[:-1], -1)
        number[path] = len(number)
        nodes.append(
            StackNode(
                parent=parent, function=frame.function, is_own=own, line=frame.line,
                file=frame.file if own else _PACKAGED.sub("", frame.file),
                main=counts[path]["main"], worker=counts[path]["worker"],
            )
        )  # fmt: skip
    return PythonStacks(
        nodes=tuple(nodes),
        interval_s=ns / samples / 1e9 if samples else 0.0,
        main=whole["main"],
        worker=whole["worker"],
        left_out=len(counts) - len(kept),
    )


# ---------------------------------------------------------------------------------- batches


def _input_lines(
    stacks: dict[Process, Stacks], interval_ns: float, users: Callable[[str], bool]
) -> InputLines:
    """Return the lines that make batches: the user's code beneath the loader, in whichever process
    it ran. Without workers the program's own process makes them between the steps. Shares are of
    that time alone, so that the line a starved device waits for is first."""
    own: Counter[tuple[Frame, Process]] = Counter()
    total: Counter[Frame] = Counter()
    calls: defaultdict[Frame, Counter[str]] = defaultdict(Counter)
    samples: Counter[Process] = Counter()
    for process, frames, times in ((p, f, t) for p in PROCESSES for f, t in stacks[p]):
        beneath = _making_batch(process, frames, users)
        if beneath is None:
            continue
        samples[process] += times
        path = [place for place, frame in enumerate(beneath) if users(frame.file)]
        # without a frame of the user's: a library's dataset, the default collation
        frame = beneath[path[-1]] if path else Frame("", 0, "")
        own[frame, process] += times
        calls[frame][_called(beneath[path[-1] + 1 :] if path else beneath)] += times
        for each in {beneath[place] for place in path}:
            total[each] += times
    whole = sum(samples.values())
    functions = sorted({f"{frame.file}:{frame.function}" for frame in total})
    return InputLines(
        main_samples=samples["main"],
        worker_samples=samples["worker"],
        lines=tuple(
            _line(frame, process, times, max(total[frame], times), whole, interval_ns, calls[frame])
            for (frame, process), times in own.most_common(MAX_INPUT_LINES)
        ),
        functions=tuple(functions[:MAX_INPUT_LINES]),
    )


def _making_batch(
    process: Process, frames: Sequence[Frame], users: Callable[[str], bool]
) -> Sequence[Frame] | None:
    """Return what runs beneath the loader, or in a function that makes batches by its name; None if
    no batch is being made."""
    if HOOK in frames:
        return None
    fetches = [
        place
        for place, frame in enumerate(frames)
        if _is_fetching(frame) and not _is_worker_loop(frame)
    ]
    if process == "worker" and (not fetches or _is_idle_worker(frames)):
        return None
    if fetches:
        beneath = frames[fetches[-1] + 1 :]
    else:
        by_hand = (
            place
            for place, frame in enumerate(frames)
            if users(frame.file) and feeds(frame.function.rpartition(".")[2])
        )
        begin = next(by_hand, None)
        if begin is None:
            return None
        beneath = frames[begin:]
    return None if _is_ours_or_import(beneath) else beneath


# ----------------------------------------------------------------------------------- frames


def _read(kind: Process, stacks: Counter[tuple[str, ...]]) -> Stacks:
    """Return the frames of the stacks that can be read, a comprehension at its function's line. A
    forked worker stands on its parent's stack: that part is not its own."""
    read = []
    for texts, times in stacks.items():
        frames = [frame for text in texts if (frame := _frame(text)) is not None]
        if kind == "worker":
            loops = [place for place, frame in enumerate(frames) if _is_worker_loop(frame)]
            frames = frames[loops[-1] :] if loops else frames
        read.append((frames, times))
    return read


@lru_cache(maxsize=65536)
def _frame(text: str) -> Frame | None:
    file, _, rest = text.rpartition(":")
    file, _, line = file.rpartition(":")
    if file and line.isdecimal() and len(line) < 10 and not file.startswith(_RIDGELINE):
        # the dot: at the top of a module a comprehension's name has none before it
        function = _COMPREHENSION.sub("", f".{rest}")[1:] or "<module>"
        return Frame(file, int(line), function)
    return HOOK if file.startswith(_HOOKS) and not _PASSES_ON.search(rest) else None


def _is_ours_or_import(beneath: Sequence[Frame]) -> bool:
    """Return whether the user's line called a hook of Ridgeline, or imports a module: start-up."""
    importing = any(frame.file.startswith("<frozen importlib.") for frame in beneath[:2])
    return importing or HOOK in beneath


def _is_worker_loop(frame: Frame) -> bool:
    return frame.function == "_worker_loop" and frame.file.endswith("worker.py")


def _is_idle_worker(frames: Sequence[Frame]) -> bool:
    """Return whether a worker waits for an index: its loop calls the queue."""
    return len(frames) > 1 and _is_worker_loop(frames[0]) and bool(_WAITING.search(frames[1].file))


def _is_fetching(frame: Frame) -> bool:
    """Return whether a frame is the loader's, between the worker's loop and the dataset."""
    return _is_worker_loop(frame) or bool(re.search(r"[/\\]_utils[/\\]fetch\.py$", frame.file))


def _called(frames: Sequence[Frame]) -> str:
    """Return what the user's line called, from the library frames beneath it, as one would import
    it: PIL.Image.Image.resize."""
    if not frames:
        return ""
    asks_loader = any(
        f.function.endswith("DataLoaderIter.__next__") and f.file.endswith("dataloader.py")
        for f in frames
    )
    if asks_loader and _WAITING.search(frames[-1].file):
        return LOADER_WAIT
    frame = next((f for f in frames if not _PLUMBING.search(f.function)), frames[-1])
    if frame.file.startswith("<"):
        module = frame.file.strip("<>").removeprefix("frozen ")
    elif _PACKAGED.match(frame.file):
        module = re.sub(r"[/\\]", ".", _PACKAGED.sub("", frame.file))
    else:
        module = re.split(r"[/\\]", frame.file)[-1]
    module = module.removesuffix(".py").removesuffix(".__init__")
    return f"{module}.{frame.function.replace('<locals>.', '')}"


# -------------------------------------------------------------------------------- whose code


def _owner(stacks: Iterable[Sequence[Frame]]) -> Callable[[str], bool]:
    """Return the test for the user's files, as far as the stacks show who the user is."""
    typed = known = False
    for frames in stacks:
        # Code given by -c has no file; a dataclass's made functions bear that name elsewhere too.
        typed |= bool(frames) and frames[0].file in _TYPED and frames[0].function == "<module>"
        known |= any(_is_users(frame.file) for frame in frames)
    if typed:
        return lambda file: file in _TYPED or _is_users(file)
    return _is_users if known else _is_not_core


@cache
def _is_users(file: str) -> bool:
    """Return whether a file is in no library. Torch's own sources, which may be a checkout, and
    what it generates are libraries too."""
    return (
        places.is_user_file(file)
        and "torchinductor_" not in file
        and not file.startswith(_torchs())
    )


@cache
def _is_not_core(file: str) -> bool:
    """Return whether a file is neither torch's nor the standard library's: a library that runs as a
    program is its user's own."""
    if "torchinductor_" in file or file.startswith(("<", *_torchs())):
        return False
    packaged = "site-packages" in file or "dist-packages" in file
    return packaged or not os.path.realpath(file).startswith(_standard())


@cache
def _torchs() -> tuple[str, ...]:
    """Return torch's folder, found without importing it."""
    try:
        spec = PathFinder.find_spec("torch")
    except Exception:  # a path entry that cannot be read: torch's frames count as a library's
        return ()
    return tuple(f"{path}{os.sep}" for path in (spec and spec.submodule_search_locations) or ())


@cache
def _standard() -> tuple[str, ...]:
    folders = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib")}
    return tuple(f"{os.path.realpath(path)}{os.sep}" for path in folders if path)


# ----------------------------------------------------------------------------- the user's files


@lru_cache(maxsize=64)
def _source(file: str) -> SourceFile | None:
    """Return a file that may be gone or changed by now; None if it cannot be read."""
    try:
        # Only a regular file: reading a pipe or a terminal would wait for ever.
        if os.path.isfile(file) and os.path.getsize(file) <= MAX_SOURCE_BYTES:
            return parsed(text_of(Path(file)), file)
    except (OSError, ValueError):
        pass
    return None


def _text(file: str, line: int) -> str:
    source = _source(file) if file else None
    return source.line(line)[:MAX_LINE_LENGTH] if source is not None else ""


def _beginning(frame: Frame) -> int:
    """Return the line at which the function of a frame begins; the frame's own if that is not
    known."""
    if frame.function == "<module>":
        return 1
    source = _source(frame.file)
    function = source.scope(frame.line) if source is not None else None
    if not isinstance(function, Function):
        return frame.line
    same = frame.function.rpartition(".")[2] == getattr(function, "name", "<lambda>")
    return function.lineno if same else frame.line
