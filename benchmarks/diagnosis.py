"""Does the diagnosis find what was planted, where it was planted, and nothing else?

    python benchmarks/diagnosis.py --save cpu.json                  every pair this machine can run
    python benchmarks/diagnosis.py --rest --save gpu.json           on a GPU: what no CPU can run
    python benchmarks/diagnosis.py --only item_sync                 one pair
    python benchmarks/diagnosis.py --page cpu.json gpu.json --out docs/results/diagnosis.md

Each program of examples/faults has one fault, named in its docstring, at the line that says `#
fault`; its twin `…_fixed.py` differs by the fix alone. Both are run under `ridgeline run`, in turn,
`--rounds` times. Asked of the first finding: is it the planted rule, at that file and line, with a
bound no smaller than the gain measured between the twins (the steps' medians, untraced, of the
fastest round of each), as far as its interval tells? Asked of the twin: is there a finding above 5
%? A program may name another measure: `memory`, the peak; `kept`, a step that was not thrown away;
`whole`, the program run by itself, less what importing torch takes; `results`, nothing, because the
fix makes the results correct and the program no faster. A program whose fault is that the processor
`emulates` a type is left out where the processor has instructions for that type.
"""

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from msgspec import Struct

import ridgeline
from ridgeline.machine import processor
from ridgeline.machine.identity import support
from ridgeline.records.run_directory import RunDirectory

FAULTS = Path(__file__).resolve().parents[1] / "examples" / "faults"
ALARM_PCT = 5.0
LONGEST_S = 300
_SETTING = re.compile(
    r"^\s*(fault|runs on|ranks|arguments|options|measure|slow|emulates): *(.+)$", re.M
)


Measure = Literal["step", "memory", "kept", "whole", "results"]


class Pair(Struct, frozen=True):
    """A program with a fault, and its twin."""

    name: str
    rule: str
    devices: tuple[str, ...]
    line: int
    ranks: int = 1
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    measure: Measure = "step"

    @property
    def memory(self) -> bool:
        """The fix saves memory, not time."""
        return self.measure == "memory"


class Seen(Struct, frozen=True):
    """What one run said."""

    rules: tuple[tuple[str, float, float, str], ...]
    """(rule, share or memory in percent, bound, place), as ranked."""
    cost: float
    """By the pair's measure: milliseconds or bytes."""
    ci: tuple[float, float]
    failed: str = ""


def fastest(rounds: Sequence[Seen]) -> Seen:
    """Of equal runs: what else the machine does can only make one slower."""
    return min(rounds, key=lambda seen: seen.cost)


class Result(Struct, frozen=True):
    pair: Pair
    faulty: tuple[Seen, ...]
    fixed: tuple[Seen, ...]

    @property
    def first(self) -> tuple[str, float, float, str]:
        rules = self.faulty[0].rules
        return rules[0] if rules else ("—", 0.0, 1.0, "")

    @property
    def found(self) -> bool:
        return self.first[0] == self.pair.rule

    @property
    def placed(self) -> bool:
        file, _, line = self.first[3].rpartition(":")
        return Path(file).name == f"{self.pair.name}.py" and line == str(self.pair.line)

    @property
    def gain(self) -> float:
        before, after = fastest(self.faulty), fastest(self.fixed)
        return before.cost / after.cost if after.cost else 0.0

    @property
    def gain_interval(self) -> tuple[float, float]:
        """By the intervals of the medians."""
        before, after = fastest(self.faulty).ci, fastest(self.fixed).ci
        return before[0] / max(after[1], 1e-9), before[1] / max(after[0], 1e-9)

    @property
    def bounded(self) -> bool:
        """The bound is at least the gain, as far as the gain is known."""
        return self.pair.memory or self.first[2] >= self.gain_interval[0]

    @property
    def alarm(self) -> tuple[str, float, float, str] | None:
        """The largest finding above 5 % on the twin."""
        rows = [row for seen in self.fixed for row in seen.rules if row[1] > ALARM_PCT]
        return max(rows, key=lambda row: row[1], default=None)

    @property
    def good(self) -> bool:
        return self.found and self.placed and self.bounded and self.alarm is None


class Part(Struct, frozen=True):
    """The results of one machine."""

    device: str
    about: str
    rounds: int
    results: tuple[Result, ...]


def pairs(only: Sequence[str], device: str) -> list[Pair]:
    found = []
    for path in sorted(FAULTS.glob("*.py")):
        text = path.read_text()
        told = dict(_SETTING.findall(text.split('"""')[1])) if '"""' in text else {}
        twin = path.with_name(f"{path.stem}_fixed.py")
        if "fault" not in told or path.stem.endswith("_fixed") or not twin.exists():
            continue
        devices = tuple(part.strip() for part in told.get("runs on", "cpu, gpu").split(","))
        lines = [n for n, row in enumerate(text.splitlines(), 1) if row.endswith("# fault")]
        if (only and path.stem not in only) or device not in devices:
            continue
        if "emulates" in told and support(torch.device("cpu"), told["emulates"].strip()).native:
            continue
        found.append(
            Pair(
                path.stem, told["fault"].strip(), devices, lines[0] if lines else 0,
                int(told.get("ranks", "1")), tuple(told.get("arguments", "").split()),
                tuple(told.get("options", "").split()), _measure(told, path),
            )
        )  # fmt: skip
    return sorted(found, key=lambda pair: only.index(pair.name)) if only else found


def _measure(told: dict[str, str], path: Path) -> Measure:
    try:
        named: Measure = msgspec.convert(told.get("measure", "step").strip(), Measure)
    except msgspec.ValidationError as error:
        raise SystemExit(f"{path.name}: {error}") from None
    return named


def seen(pair: Pair, fixed: bool, keep: Path | None) -> Seen:
    script = FAULTS / f"{pair.name}{'_fixed' if fixed else ''}.py"
    with tempfile.TemporaryDirectory() as folder:
        ours = ["-m", "ridgeline", "run", "-q", *pair.options]
        ours += ["-o", "result.json", "--", str(script), *pair.arguments]
        command = [sys.executable, *ours]
        if pair.ranks > 1:
            launch = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={pair.ranks}",
            ]
            command = [sys.executable, *launch, *ours]
        try:
            ended = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=LONGEST_S
            )
            result = json.loads((Path(folder) / "result.json").read_text())
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            return Seen((), 0.0, (0.0, 0.0), failed=str(error)[:200])
        recorded = max((Path(folder) / ".ridgeline" / "runs").glob("*"), default=None)
        if keep is not None and recorded is not None:
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copytree(recorded, keep / script.stem, dirs_exist_ok=True)
        why = ended.stderr.strip().splitlines()[-1][:200] if ended.returncode else ""
        rows = tuple(
            (f["rule"], max(f["share_pct"], f["memory_pct"]), f["gain_bound"], _place(f))
            for f in result["findings"]
        )
        if pair.measure == "whole":
            alone = whole_ms([str(script), *pair.arguments], folder)
            return Seen(rows, alone, (alone, alone), why)
        cost, ci = _cost(pair.measure, result, recorded)
        return Seen(rows, cost, ci, why)


def whole_ms(arguments: Sequence[str], folder: str) -> float:
    """The program by itself, less an empty one that imports torch."""
    spent = []
    for command in (arguments, ["-c", "import torch"]):
        begun = time.perf_counter()
        subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, check=True)
        spent.append(1e3 * (time.perf_counter() - begun))
    return max(spent[0] - spent[1], 0.0)


def _cost(
    measure: Measure, result: dict[str, Any], recorded: Path | None
) -> tuple[float, tuple[float, float]]:
    step, memory = result["step"], result["memory"]
    if measure == "results":
        return 1.0, (1.0, 1.0)
    if measure == "memory":
        peak = float(memory.get("device_peak_bytes") or memory.get("host_peak_bytes") or 0)
        return peak, (peak, peak)
    scale = 1.0
    if measure == "kept" and recorded is not None:
        steps = RunDirectory(recorded).steps()
        scale = len(steps) / max(sum(not one.skipped for one in steps), 1)
    low, high = step.get("ci") or (0.0, 0.0)
    return scale * (step.get("median_ms") or 0.0), (scale * low, scale * high)


def _place(finding: dict[str, Any]) -> str:
    return f"{finding['file']}:{finding['line']}" if finding["file"] else ""


def run(pair: Pair, rounds: int, keep: Path | None) -> Result:
    faulty: list[Seen] = []
    fixed: list[Seen] = []
    for number in range(rounds):
        order = (False, True) if number % 2 == 0 else (True, False)
        for twin in order:
            (fixed if twin else faulty).append(seen(pair, twin, keep if number == 0 else None))
    return Result(pair, tuple(faulty), tuple(fixed))


def row(result: Result) -> str:
    rule, share, bound, place = result.first
    alarm = result.alarm
    marks = [
        result.pair.name,
        result.pair.rule,
        "✓" if result.found else f"✗ {rule}",
        "✓" if result.placed else f"✗ {Path(place).name or '—'}, not {result.pair.line}",
        f"{share:.0f} %",
        _gained(result, bound),
        "none" if alarm is None else f"✗ {alarm[0]} {alarm[1]:.0f} %",
    ]
    failed = next((s.failed for s in (*result.faulty, *result.fixed) if s.failed), "")
    return f"| {' | '.join(marks)} |" + (f" <!-- {failed} -->" if failed else "")


def _gained(result: Result, bound: float) -> str:
    if result.pair.memory:
        return f"memory {result.gain:.2f} ×"
    low, high = result.gain_interval
    known = f" [{low:.2f}, {high:.2f}]" if low < high else ""
    return f"{'✓' if result.bounded else '✗'} {bound:.2f} × for {result.gain:.2f}{known} ×"


HEADER = (
    "| program | planted | found first | file and line | share | bound for the gain between the "
    "twins | above 5 % on the twin |\n| --- | --- | --- | --- | ---: | --- | --- |"
)


def section(part: Part) -> str:
    good = sum(result.good for result in part.results)
    found = sum(result.found for result in part.results)
    placed = sum(result.found and result.placed for result in part.results)
    alarms = sum(result.alarm is not None for result in part.results)
    missed = [f"- `{r.pair.rule}` read as {r.first[0]}" for r in part.results if not r.found] or [
        "- none"
    ]
    return "\n".join(
        [
            f"## {part.device}",
            "",
            f"{part.about}; {part.rounds} round{'s' * (part.rounds != 1)} of each pair.",
            "",
            f"**{len(part.results)} planted, {found} found first, {placed} of those at their line, "
            f"{alarms} false alarms on twins; {good} right in everything.**",
            "",
            HEADER,
            *map(row, part.results),
            "",
            "Confusions (planted, found first instead):",
            "",
            *missed,
            "",
        ]
    )


def page(parts: Sequence[Part]) -> str:
    said = __doc__.split("\n\n")[2].replace("\n", " ")
    return "\n".join(["# Diagnosis on planted faults", "", said, "", *map(section, parts)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="names of programs")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="pairs at once: a look, no figure")
    parser.add_argument("--rest", action="store_true", help="only what no CPU can run")
    parser.add_argument("--save", type=Path, help="the results as JSON")
    parser.add_argument("--keep", type=Path, help="copy the run directories here")
    parser.add_argument("--page", type=Path, nargs="*", help="make the page of saved results")
    parser.add_argument("--out", type=Path, help="write the page here as well")
    asked = parser.parse_args()
    if asked.page:
        parts = [msgspec.json.decode(path.read_bytes(), type=Part) for path in asked.page]
    else:
        parts = [measured(asked)]
    text = page(parts)
    print(text)
    if asked.out:
        asked.out.write_text(text)


def measured(asked: argparse.Namespace) -> Part:
    gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if gpu else processor.name()
    about = f"{date.today()}, ridgeline {ridgeline.__version__}, torch {torch.__version__}, Python "
    about += platform.python_version()
    results: list[Result] = []

    def taken(pair: Pair) -> None:
        results.append(run(pair, asked.rounds, asked.keep))
        print(row(results[-1]), file=sys.stderr, flush=True)
        if asked.save:  # after each, so that what was measured is never lost
            asked.save.write_bytes(msgspec.json.encode(part()))

    def part() -> Part:
        return Part(name, about, asked.rounds, tuple(results))

    every = pairs(asked.only, "gpu" if gpu else "cpu")
    wanted = [pair for pair in every if not (asked.rest and "cpu" in pair.devices)]
    with ThreadPoolExecutor(asked.jobs) as at_once:
        for _ in at_once.map(taken, wanted):
            pass
    return part()


if __name__ == "__main__":
    main()
