"""What `ridgeline run` costs the program it watches, beside other profilers on the same program.

    python benchmarks/overhead.py --out docs/results/overhead-cpu.md      about 12 minutes
    python benchmarks/overhead.py --quick                                 about 3
    python benchmarks/overhead.py --gpu --out overhead.md                 ResNet-50 and GPT-2
    python benchmarks/overhead.py --gpu --workload gpt2 --only ridgeline  a part of it

Fresh processes of the plain program (twice: the second is the A/A control) and of two tools at a
time are held side by side, and asked for blocks of steps in an order drawn anew each round, so
that all meet the same machine within a second: this is what resolves 1 % where runs of their own
differ by 10 %. Ratios are of `ridgeline.statistics` (paired by round; the interval the wider of
within and between sets of processes). Each program times its blocks with its own clock. Peers that
are not installed are named and left out.
"""

import argparse
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from statistics import median

import numpy as np
from msgspec import Struct
from overhead_runner import (
    ALONE,
    CONTROL,
    CPROFILE,
    LIGHT,
    OFF,
    OFF_AGAIN,
    PLAIN,
    PROFILER,
    PYINSTRUMENT,
    PYTHON,
    SCALENE,
    Rounds,
    Started,
    Tool,
    installed,
    starts,
    take,
    take_within,
    threads,
)

import ridgeline
from ridgeline.records.comparison import Estimate
from ridgeline.statistics.paired import estimate
from ridgeline.statistics.samples import summarize
from ridgeline.units import percent, plural, seconds

GROUPS = ((LIGHT, ALONE), (PYTHON, PYINSTRUMENT), (PROFILER, CPROFILE), (SCALENE,))
"""Two tools at a time: four GPT-2s of 23 GiB still fit an H200."""


class Plan(Struct, frozen=True):
    sets: int
    """Of processes; under 3 the interval knows nothing of how sets differ."""
    peer_sets: int
    within_sets: int
    """Of one process whose hooks go on and off."""
    rounds: int
    start_rounds: int
    block_s: float


FULL = Plan(sets=8, peer_sets=3, within_sets=4, rounds=20, start_rounds=12, block_s=0.2)
QUICK = Plan(sets=3, peer_sets=1, within_sets=1, rounds=10, start_rounds=4, block_s=0.1)
ON_GPU = Plan(sets=3, peer_sets=1, within_sets=2, rounds=10, start_rounds=3, block_s=0.4)


class Row(Struct):
    tool: Tool
    step_ms: float
    cost: Estimate
    """The plain program's time over the tool's."""
    used: Estimate
    """The same of processor time."""


def rows(taken: Rounds) -> Iterator[Row]:
    """The control against the first copy, then each tool against both."""
    samples, used = np.array(taken.samples), np.array(taken.used)
    for arm, tool in enumerate(taken.tools):
        if tool in (PLAIN, OFF):
            continue
        copies = 1 if tool in (CONTROL, OFF_AGAIN) else 2
        cost, share = (
            estimate(times[:, :copies], times[:, arm], alpha=0.05, seed=0, process=taken.process)
            for times in (samples, used)
        )
        yield Row(tool, float(np.median(samples[:, arm])) / 1e6, cost, share)


def step_lines(workload: str, taken: Sequence[Rounds]) -> list[str]:
    found = [[*rows(group)] for group in taken]
    plain_ms = median(row.step_ms for group in found for row in group if row.tool is CONTROL)
    shown = [
        cells(row, counted)
        for at, (group, counted) in enumerate(zip(found, taken, strict=True))
        for row in group
        if row.tool is not CONTROL or at == 0
    ]
    header = ["", "step ms", "time × plain", "CPU time × plain", "rounds", "sets of processes"]
    shares = [share for group in taken for share in group.watcher_share]
    watcher = (
        [f"The process that watches took {percent(median(shares))} of one processor.", ""]
        if shares
        else []
    )
    title = {
        "small": f"A step of {plain_ms:.1f} ms on the CPU",
        "resnet50": f"ResNet-50, batch 32, a step of {plain_ms:.1f} ms",
        "gpt2": f"GPT-2 124M, 8 × 1024, attention written out, a step of {plain_ms:.0f} ms",
    }[workload]
    return [f"## {title}", "", *table(header, shown), "", *watcher]


def within_lines(workload: str, taken: Rounds) -> list[str]:
    """The same hooks, taken off and put on again in one process."""
    what = "the same program, all widths 8, " if workload == "tiny" else ""
    said = (
        f"Within one process: {what}the hooks taken off and put on again block by block, so that "
        "nothing else differs."
    )
    header = ["", "step ms", "time × off", "CPU time × off", "rounds", "processes"]
    shown = table(header, [cells(row, taken) for row in rows(taken)])
    used, by_clock = micro(taken.used), micro(taken.samples)
    took = f"The hooks take {used} a step of processor time, {by_clock} by the clock."
    return [said, "", *shown, "", took, ""]


def micro(samples: Sequence[Sequence[float]]) -> str:
    """What the last arm takes more than the mean of the others: the rounds' median, interval."""
    found = summarize([on - (off + again) / 2 for off, again, on in samples])
    low, high = found.ci_low_ns / 1e3, found.ci_high_ns / 1e3
    return f"{found.median_ns / 1e3:.0f} µs [{low:.0f}, {high:.0f}]"


def cells(row: Row, counted: Rounds) -> list[str]:
    return [
        row.tool.name,
        f"{row.step_ms:.2f}",
        times(row.cost),
        times(row.used),
        str(row.cost.rounds),
        str(len(set(counted.process))),
    ]


def times(found: Estimate) -> str:
    """The tool over plain: 1.01 is 1 % slower."""
    return f"{1 / found.ratio:.4f} [{1 / found.ci_high:.4f}, {1 / found.ci_low:.4f}]"


def start_lines(tools: Sequence[Tool], found: Sequence[Sequence[Started]]) -> list[str]:
    shown = []
    for at, tool in enumerate(tools):
        row = [tool.name]
        for figure in ("first_line_s", "torch_s", "end_s"):
            values = [getattr(taken[at], figure) for taken in found]
            more = [v - getattr(taken[0], figure) for v, taken in zip(values, found, strict=True)]
            row.append(seconds(median(values)))
            row.append("" if tool is PLAIN else _spread(more))
        shown.append(row)
    header = [
        "", "first line", "more", "torch imported", "more", "last line to exit", "more",
    ]  # fmt: skip
    title = f"## Start and end, {plural(len(found), 'round')}"
    said = "A script that imports torch and ends; `more` is the median of the rounds' differences."
    return [title, "", said, "", *table(header, shown), ""]


def _spread(differences: Sequence[float]) -> str:
    found = summarize([1e9 * value for value in differences])
    low, high = found.ci_low_ns / 1e9, found.ci_high_ns / 1e9
    return f"{found.median_ns / 1e9:+.2f} s [{low:+.2f}, {high:+.2f}]"


def table(header: Sequence[str], shown: Sequence[Sequence[str]]) -> Iterator[str]:
    """Markdown, aligned; the first column to the left."""
    widths = [max(map(len, column)) for column in zip(header, *shown, strict=True)]
    for row in (header, None, *shown):
        if row is None:
            rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
            yield f"| {' | '.join(rule)} |"
        else:
            padded = [row[0].ljust(widths[0])]
            padded += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            yield f"| {' | '.join(padded)} |"


def page(gpu: bool, body: Sequence[str], absent: Sequence[str], command: str) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in installed().items())
    left_out = [f"Left out, not installed: {', '.join(absent)}.", ""] if absent else []
    return "\n".join(
        [
            f"# Overhead of `ridgeline run`, {'GPU' if gpu else 'CPU'}",
            "",
            f"{date.today()}; ridgeline {ridgeline.__version__}, {versions}, Python "
            f"{platform.python_version()}, {_device(gpu)}, threads {threads()}; made by "
            f"`{command}`.",
            "",
            "A round is a block of steps of every program in an order drawn anew; the ratio is "
            "paired by round, with both plain copies as the baseline; the interval is the wider of "
            "within and between sets of fresh processes. `plain, again` is the A/A control.",
            "",
            *left_out,
            *body,
        ]
    ).rstrip() + "\n"  # fmt: skip


def _device(gpu: bool) -> str:
    if gpu:
        import torch

        return torch.cuda.get_device_name()
    from ridgeline.machine import processor

    return processor.name()


def steps_of(workload: str, plan: Plan, only: str | None, say: Callable[[str], None]) -> list[str]:
    taken = []
    for group in GROUPS:
        there = [tool for tool in group if not tool.missing]
        ours = LIGHT in there
        if not there or only not in (None, "ridgeline" if ours else "peers"):
            continue
        taken.append(
            take(
                (PLAIN, CONTROL, *there), workload, say=say, rounds=plan.rounds,
                sets=plan.sets if ours else plan.peer_sets, block_s=plan.block_s,
            )
        )  # fmt: skip
    found = step_lines(workload, taken) if taken else []
    if only in (None, "ridgeline"):
        for each in (workload, "tiny") if workload == "small" else (workload,):
            within = take_within(
                each, sets=plan.within_sets, rounds=plan.rounds, block_s=plan.block_s, say=say
            )
            found += within_lines(each, within)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a look, no figure")
    parser.add_argument("--gpu", action="store_true", help="ResNet-50 and GPT-2 on the GPU")
    parser.add_argument("--workload", choices=["small", "resnet50", "gpt2"], help="only this one")
    parser.add_argument("--only", choices=["start", "ridgeline", "peers"], help="a part of it")
    parser.add_argument("--out", type=Path, help="write the page here as well")
    asked = parser.parse_args()
    plan = QUICK if asked.quick else ON_GPU if asked.gpu else FULL

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    wanted = [tool for group in GROUPS for tool in group]
    absent = [tool.name for tool in wanted if tool.missing]
    body: list[str] = []
    every = ("resnet50", "gpt2") if asked.gpu else ("small",)
    for workload in (asked.workload,) if asked.workload else every:
        body += steps_of(workload, plan, asked.only, say)
    if asked.only in (None, "start"):
        tools = (PLAIN, ALONE, *(t for t in (CPROFILE, PYINSTRUMENT, SCALENE) if not t.missing))
        body += start_lines(tools, starts(tools, plan.start_rounds, say))
    say("")
    text = page(asked.gpu, body, absent, " ".join(["python", *sys.argv]))
    print(text, end="")
    if asked.out:
        asked.out.write_text(text)


if __name__ == "__main__":
    main()
