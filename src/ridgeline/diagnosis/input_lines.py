"""The lines that make batches: the user's code beneath the loader, in whichever process it ran.

Without workers the program's own process makes them, between the steps; with workers they do. Both
are one table here, its shares of that time alone: the line a starved device waits for is first.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from ridgeline.diagnosis.hand_fed import feeds
from ridgeline.diagnosis.python_frames import (
    HOOK,
    Frame,
    called,
    is_fetching,
    is_idle_worker,
    is_not_the_programs,
    is_worker_loop,
)
from ridgeline.records.run import InputLines, PythonLine

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
