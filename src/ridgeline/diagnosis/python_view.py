"""Where the host's Python time went: sampled stacks, by line and function of the user's code.

A sample belongs to the innermost frame that is the user's: library code is the time of the line
that called it. In a worker without any such frame (a library's dataset, the default collation) it
belongs to the function the worker called. Waiting for an index is a worker's idle time, and no part
of the shares. Our own hooks and the program's imports are in no figure at all.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from ridgeline.diagnosis import python_source
from ridgeline.diagnosis.input_lines import input_lines
from ridgeline.diagnosis.python_frames import (
    LOADER_WAIT,
    Frame,
    called,
    frames_of,
    is_fetching,
    is_idle_worker,
    is_not_the_programs,
    is_worker_loop,
    owner,
)
from ridgeline.records.run import PythonLine, PythonView, Sampled

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
    text: Callable[[str, int], str] = python_source.text_of,
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
        begins = python_source.beginning_of(file, first, function) or first
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
