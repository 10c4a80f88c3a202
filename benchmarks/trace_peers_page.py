"""The page that `trace_peers.py` writes: measurements, ratios, growth with size, targets."""

import os
import platform
from collections.abc import Iterator, Sequence
from datetime import date

import duckdb
import numpy as np
from msgspec import Struct
from trace_peers_runner import Measured

import ridgeline

COLD, WARM = "ridgeline, cold", "ridgeline, warm"
PORTABLE = "ridgeline, cold, portable reader"
READ, SAME = "ridgeline, reading and cache only", "ridgeline, the same analyses"


class Measurement(Struct):
    name: str
    measured: Measured | None
    runs: int
    note: str = ""
    idle_and_all_us: list[float] | None = None
    grown_s: float = 0.0
    """Seconds in a part that grows with events × steps, and so with how the file was made."""


class File(Struct):
    name: str
    events: int
    bytes: int
    rows: list[Measurement]

    def row(self, name: str) -> Measured | None:
        return next((row.measured for row in self.rows if row.name == name), None)

    @property
    def millions(self) -> float:
        return self.events / 1e6

    @property
    def title(self) -> str:
        return f"{self.name}, {self.millions:.2f} M"


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> Iterator[str]:
    """A Markdown table; the first `texts` columns to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, None, *rows):
        cells = []
        for at, width in enumerate(widths):
            if row is None:
                cells.append("-" * width if at < texts else "-" * (width - 1) + ":")
            else:
                cells.append(row[at].ljust(width) if at < texts else row[at].rjust(width))
        yield f"| {' | '.join(cells)} |"


def measurements(files: Sequence[File]) -> Iterator[str]:
    header = [
        "file, events",
        "what",
        "wall s",
        "CPU s",
        "peak MB",
        "s / M",
        "MB / M",
        "runs",
        "load",
    ]
    rows = []
    for file in files:
        for row in file.rows:
            found = row.measured
            if found is None:
                rows.append([file.title, row.name, row.note, *[""] * 6])
                continue
            seconds, peak = found.seconds, found.peak_mb
            rows.append(
                [file.title, row.name, f"{seconds:.2f}", f"{found.cpu_seconds:.2f}", f"{peak:.0f}",
                 f"{seconds / file.millions:.2f}", f"{peak / file.millions:.0f}", str(row.runs),
                 f"{found.load:.1f}"]
            )  # fmt: skip
    return aligned(header, rows, 2)


def ratios(files: Sequence[File]) -> Iterator[str]:
    header = [
        "file, events",
        "peer",
        "ours",
        "times faster",
        "without step marks",
        "CPU, times less",
        "of its memory",
    ]
    rows = []
    for file in files:
        for row in file.rows:
            if row.name.startswith("ridgeline") or row.measured is None:
                continue
            for name in (SAME, COLD, PORTABLE, WARM):
                mine, its = file.row(name), row.measured
                if mine is not None:
                    rows.append(
                        [file.title, row.name, name.removeprefix("ridgeline, "),
                         f"{its.seconds / mine.seconds:.1f}",
                         f"{(its.seconds - row.grown_s) / mine.seconds:.1f}",
                         f"{its.cpu_seconds / mine.cpu_seconds:.1f}",
                         f"{mine.peak_mb / its.peak_mb:.2f}"]
                    )  # fmt: skip
    return aligned(header, rows, 3)


def growth(files: Sequence[File]) -> Iterator[str]:
    """Per million events, of each size over the smallest of the same trace: 1 is linear."""
    header = ["file, events", "what", "wall", "CPU", "memory"]
    rows = []
    for file in files:
        least = min((f for f in files if f.name == file.name), key=lambda f: f.events)
        for row in file.rows:
            base, found = least.row(row.name), row.measured
            if file is least or base is None or found is None:
                continue
            scale = least.millions / file.millions
            rows.append(
                [file.title, row.name, f"{found.seconds / base.seconds * scale:.2f}",
                 f"{found.cpu_seconds / base.cpu_seconds * scale:.2f}",
                 f"{found.peak_mb / base.peak_mb * scale:.2f}"]
            )  # fmt: skip
    return aligned(header, rows, 2)


def targets(files: Sequence[File]) -> Iterator[str]:
    header = ["target", "file, events", "found", "met"]
    rows = []

    def judge(target: str, file: File, found: str, met: bool) -> None:
        rows.append([target, file.title, found, "yes" if met else "NO"])

    for file in files:
        cold, warm, hta = file.row(COLD), file.row(WARM), file.row("HTA")
        if cold is None or warm is None:
            continue
        seconds, peak = cold.seconds / file.millions, cold.peak_mb / file.millions
        if (read := file.row(READ)) is not None:
            ingest = read.seconds / file.millions
            judge("reading and cache ≤ 2 s a million", file, f"{ingest:.2f} s", ingest <= 2)
            judge("the same ≤ 1 s, compiled scanner", file, f"{ingest:.2f} s", ingest <= 1)
        judge("all analyses, cold ≤ 2 s a million", file, f"{seconds:.2f} s", seconds <= 2)
        judge("cold ≤ 300 MB a million", file, f"{peak:.0f} MB", peak <= 300)
        if 4.5 < file.millions < 6:
            judge("warm at 5 M < 1 s", file, f"{warm.seconds:.2f} s", warm.seconds < 1)
        if hta is not None and (same := file.row(SAME)) is not None:
            faster = hta.seconds / same.seconds
            judge("the same analyses ≥ 20 × HTA", file, f"{faster:.1f} ×", faster >= 20)
        if hta is not None:
            faster, share = hta.seconds / cold.seconds, cold.peak_mb / hta.peak_mb
            judge("all analyses, cold ≥ 20 × HTA", file, f"{faster:.1f} ×", faster >= 20)
            judge("cold ≤ 1/4 of HTA's memory", file, f"{share:.2f}", share <= 0.25)
    return aligned(header, rows, 2)


def answers(files: Sequence[File]) -> Iterator[str]:
    """What each said of the same thing: the device's idle time and the span it is taken over."""
    header = ["file, events", "what", "idle ms", "of ms"]
    rows = [
        [file.title, row.name, *(f"{us / 1e3:.3f}" for us in row.idle_and_all_us)]
        for file in files
        for row in file.rows
        if row.idle_and_all_us is not None and row.name != PORTABLE
    ]
    return aligned(header, rows, 2)


def notes(files: Sequence[File]) -> Iterator[str]:
    for file in files:
        for row in file.rows:
            if row.note and row.measured is not None:
                yield f"* {file.title}, {row.name}. {row.note}."


def page(files: Sequence[File], load_before: float, command: str) -> str:
    versions = (
        f"ridgeline {ridgeline.__version__}, Python {platform.python_version()}, numpy "
        f"{np.__version__}, duckdb {duckdb.__version__}, {os.cpu_count()} cores"
    )
    parts = {
        "Measured": measurements(files),
        "Against peers": ratios(files),
        "Growth with size": growth(files),
        "Targets": targets(files),
        "The same answer": answers(files),
        "The peers' own parts": notes(files),
    }
    text = [
        "# Trace analysers: time and memory", "",
        f"{date.today()}; {versions}; made by `{command}`.", "",
        *_EXPLAINED, "",
        f"Other work shared the cores: the load average was {load_before:.1f} before the first run "
        "and is given with each row. CPU time suffers less from that than wall time.", "",
    ]  # fmt: skip
    for title, lines in parts.items():
        text += [f"## {title}", "", *lines, ""]
    return "\n".join(text).rstrip() + "\n"


_EXPLAINED = (
    "Whole processes, imports included; the same gzip files, in the page cache for everyone. Grown "
    "from real traces by repetition (`benchmarks/grow_trace.py`), which flatters whoever keeps "
    "distinct texts once. It also multiplies profiler steps, and HTA tries every step for every "
    "event: “without step marks” leaves that part of its time out. Peak is the resident set of "
    "the largest process of the tree; each tool here has one.",
    "",
    "Compared: the time and memory until the answer is there, and of the answers the idle time "
    "only. HTA loads and does four analyses (temporal, idle, kernels, overlap); `ridgeline trace "
    "--json` does those and the rest it has (causes and lines of idle gaps, modules, roofline, "
    "memory, critical path) and writes its cache. HTA runs with rounding to µs off and the last "
    "step included: with its defaults the temporal breakdown fails on one of these traces, and the "
    "last step is left out. “Cold” has no cache of the trace, and "
    "the compiled scanner from an earlier run; “portable reader” has neither and no compiler; "
    "“warm” is the same question asked again. A million is a million events; MB are 10⁶ bytes. Of "
    "several runs the median time and the largest peak.",
)
