"""Ridgeline against other trace analysers: wall time and peak memory of whole processes, one run.

    python benchmarks/trace_peers.py run.json.gz --out docs/results/trace-peers.md
    python benchmarks/trace_peers.py run.json.gz --grow 1000000 --env /tmp/peers

Each real trace is grown by `grow_trace.py`, and every tool reads the same grown file, packed with
gzip. HTA gets an environment of its own (made under --env where it is not there yet) and is asked
for load, temporal breakdown, idle time, kernels and overlap; `ridgeline trace --json` gives all its
analyses. Ours runs up to 3 times while that takes less than 12 s (the median counts), peers once.
"""

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from grow_trace import grow
from msgspec.json import encode
from msgspec.structs import replace
from trace_peers_page import File, Measurement, page
from trace_peers_runner import Failed, Measured, measured

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
REPEATS, ENOUGH_S = 3, 12.0
PORTABLE_EVENTS = 2_000_000
"""Above this the portable reader is left out: it takes minutes."""
PACKAGES = (
    ("tracesinght",),
    ("HolisticTraceAnalysis==0.5.0", "pandas==3.1.1", "numpy==2.4.6", "plotly==7.1.0"),
)
"""HTA's new name where the index has it, else the old; the pinned ones are those it ran with."""
INGEST = """
import sys
from pathlib import Path
from ridgeline.trace.reading import cache, reader
path = Path(sys.argv[1])
assert cache.store(reader.parse(path), path) is not None
"""
SAME = """
import sys
from pathlib import Path
from ridgeline.records.facts import Trust
from ridgeline.trace.analyses.busy import devices
from ridgeline.trace.analyses.idle import idle_gaps
from ridgeline.trace.analyses.idle import idle
from ridgeline.trace.analyses.kernels import kernels
from ridgeline.trace.links import Links
from ridgeline.trace.window import steps_of
from ridgeline.trace.study import open_trace
from ridgeline.trace.window import window_of
opened = open_trace(Path(sys.argv[1]))
trace = opened.trace
links, steps, window = Links(trace), steps_of(trace), window_of(trace)
print(devices(trace, window, steps, Trust()))
print(idle(trace, links, idle_gaps(trace, links, window), steps, Trust()).causes)
print(kernels(trace, links, window)[0][:5])
opened.writing.join()
"""
"""HTA's four and no more: temporal and overlap (`devices`), idle by cause, kernels; with cache."""
BUILD = """
from ridgeline.trace.reading import compiled
assert compiled.library(build=True) is not None, "no C compiler"
"""


def hta_python(home: Path) -> str:
    """The Python of HTA's environment, made where it is not there yet."""
    python = home / "hta" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home / "hta")], check=True)
    for packages in ((), *PACKAGES):
        if packages:
            install = [str(python), "-m", "pip", "install", "--quiet", *packages]
            subprocess.run(install, capture_output=True)
        if not subprocess.run([str(python), "-c", "import hta"], capture_output=True).returncode:
            return str(python)
    raise SystemExit("HTA could not be installed")


def forget(trace: Path) -> None:
    shutil.rmtree(trace.parent / ".ridgeline", ignore_errors=True)


def kept(trace: Path) -> list[tuple[str, int]]:
    """The caches of the trace and when they were written."""
    found = (trace.parent / ".ridgeline").glob("traces/*/trace.json")
    return sorted((str(path), path.stat().st_mtime_ns) for path in found)


def snapshot(folder: Path) -> None:
    """A copy of our source: an edit in the middle would mix versions, and void the cache."""
    shutil.rmtree(folder / "source", ignore_errors=True)
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder / "source", quiet=1)  # as an installed package is


def ours(trace: Path, events: int, folder: Path, limit_s: float) -> Iterator[Measurement]:
    """Cold with the compiled scanner and without, reading alone, and warm."""
    built = {"PYTHONPATH": str(folder / "source"), "RIDGELINE_CACHE": str(folder / "scanner")}
    subprocess.run([sys.executable, "-c", BUILD], env=os.environ | built, check=True)
    portable = built | {"RIDGELINE_SCANNER": "off", "RIDGELINE_CACHE": str(folder / "empty")}
    ask = [sys.executable, "-m", "ridgeline", "trace", str(trace), "--json", "--quiet"]
    read = [sys.executable, "-c", INGEST, str(trace)]
    same = [sys.executable, "-c", SAME, str(trace)]
    for name, command, environment, cold in (
        ("ridgeline, cold, portable reader", ask, portable, True),
        ("ridgeline, reading and cache only", read, built, True),
        ("ridgeline, the same analyses", same, built, True),
        ("ridgeline, cold", ask, built, True),
        ("ridgeline, warm", ask, built, False),
    ):
        if environment is portable and events > PORTABLE_EVENTS:
            continue
        found, runs = repeated(trace, command, environment, cold, limit_s)
        yield Measurement(
            name, found, runs, "", idle_and_span(found.output) if command is ask else None
        )
    forget(trace)


def idle_and_span(output: str) -> list[float] | None:
    """Microseconds idle and in all, where one device is reported."""
    said = json.loads(output)
    devices = said.get("devices", [])
    return [1e3 * devices[0]["idle_ms"], 1e3 * said["window"]["ms"]] if len(devices) == 1 else None


def repeated(
    trace: Path, command: Sequence[str], environment: dict[str, str], cold: bool, limit_s: float
) -> tuple[Measured, int]:
    taken: list[Measured] = []
    while len(taken) < REPEATS and sum(m.seconds for m in taken) < ENOUGH_S:
        if cold:
            forget(trace)
        before = kept(trace)
        taken.append(measured(command, environment, limit_s))
        if not cold and kept(trace) != before:
            raise SystemExit("a warm run wrote the cache anew: it was not warm")
    middle = replace(
        taken[-1],
        seconds=median(m.seconds for m in taken),
        cpu_seconds=median(m.cpu_seconds for m in taken),
        peak_mb=max(m.peak_mb for m in taken),
    )
    return middle, len(taken)


def peer(name: str, command: Sequence[str], limit_s: float) -> Measurement:
    try:
        found = measured(command, {"HTA_DISABLE_NS_ROUNDING": "1"}, limit_s)
    except Failed as error:
        return Measurement(name, None, 1, note=str(error))
    said = json.loads(found.output.strip().splitlines()[-1])
    parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in said["took"].items())
    failed = "".join(f"; {part} failed: {why}" for part, why in said["failed"].items())
    return Measurement(
        name,
        found,
        1,
        f"{said['versions']}: {parts} s{failed}",
        said["idle_and_all_us"],
        said["took"].get("of that step marks", 0.0),
    )


def grown(source: Path, events: int, work: Path) -> tuple[Path, int]:
    """The grown file and its events; one that is there from an earlier run is used again."""
    stem = source.name.partition(".")[0]
    target = work / f"{stem}-{events}" / f"{stem}.json.gz"
    count = target.with_name("events")
    if not count.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        count.write_text(str(grow(source, target, events)))
    with target.open("rb") as file:  # in memory for whoever comes first
        while file.read(1 << 24):
            pass
    return target, int(count.read_text())


def compared(asked: argparse.Namespace, work: Path, env: Path) -> Iterator[File]:
    peers: dict[str, list[str]] = {}
    if "hta" in asked.peers.split(","):
        peers["HTA"] = [hta_python(env), str(HERE / "trace_peers_hta.py")]
    if asked.tracelens:
        peers["TraceLens"] = [asked.tracelens, str(HERE / "trace_peers_tracelens.py")]
    for events in sorted(map(int, asked.grow.split(","))):
        for source in asked.traces:
            trace, count = grown(source, events, work)
            rows = []
            for row in ours(trace, count, work, asked.limit):
                rows.append(row)
                say(trace, row)
            if events <= asked.peer_events:
                for name, command in peers.items():
                    rows.append(peer(name, [*command, str(trace)], asked.limit))
                    say(trace, rows[-1])
            found = File(source.name.partition(".")[0], count, trace.stat().st_size, rows)
            with (work / "rows.jsonl").open("ab") as file:  # what is measured outlives a crash
                file.write(encode(found) + b"\n")
            yield found
            if not asked.keep:
                shutil.rmtree(trace.parent)


def say(trace: Path, row: Measurement) -> None:
    found = row.measured
    figures = f"{found.seconds:.2f} s, {found.peak_mb:.0f} MB" if found else ""
    load = f"load {os.getloadavg()[0]:.1f}"
    print(f"{trace.parent.name}: {row.name}: {figures} {row.note} ({load})", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--grow", default="1000000,5000000,20000000", help="events, several sizes")
    parser.add_argument("--peers", default="hta", help="hta, or nothing")
    parser.add_argument("--peer-events", type=int, default=5_000_000, help="no peer above this")
    parser.add_argument("--tracelens", metavar="PYTHON", help="a Python that has TraceLens")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds for one command")
    parser.add_argument("--env", type=Path, help="where the peers' environments are or shall be")
    parser.add_argument("--work", type=Path, help="where the grown files are or shall be")
    parser.add_argument("--keep", action="store_true", help="do not remove the grown files")
    parser.add_argument("--out", type=Path, help="write the page here as well")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trace-peers-") as scratch:
        work, env = asked.work or Path(scratch), asked.env or Path(scratch)
        snapshot(work)
        before = os.getloadavg()[0]
        text = page(list(compared(asked, work, env)), before, "python " + " ".join(_typed()))
    print(text, end="")
    if asked.out:
        asked.out.write_text(text)


def _typed() -> Iterator[str]:
    """The command without the folders of this machine."""
    words = iter(sys.argv)
    for word in words:
        if word in ("--env", "--work", "--tracelens"):
            next(words, None)
        elif word != "--keep":
            yield Path(word).name if Path(word).is_absolute() else word


if __name__ == "__main__":
    main()
