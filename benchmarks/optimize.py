"""Is what `ridgeline optimize` keeps really faster? Asked of `ridgeline compare`.

    python benchmarks/optimize.py --save cpu.json --out docs/results/cpu-optimize.md     two hours
    python benchmarks/optimize.py --only train_slow_loader --budget 2m --check 1m
    python benchmarks/optimize.py --foreign programs.txt --save foreign.json
    python benchmarks/optimize.py --page cpu.json foreign.json

Each program is optimized on its own. If something was kept, `ridgeline compare` runs the copy that
was written against the program as it was: other processes, another timer, another statistic, and
losses compared once more, as far apart as the report itself says to allow. FASTER confirms it.
SAME, SLOWER and INVALID are false wins. UNDECIDED is neither, and counted apart, as is what could
not be written into the source. The programs are training examples, planted faults, the faults'
twins, in which there is little or nothing to win, and twelve in which nothing can be won: there,
too, nothing may be kept that `compare` does not confirm. The exit code is 1 where there was a false
win.

Programs that somebody else wrote are named in a file with a line for each: a name, its folder, and
what is typed after `ridgeline optimize` in that folder, with a colon between.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from msgspec import Struct

import ridgeline
from ridgeline import units
from ridgeline.machine import processor
from ridgeline.records.parity import Parity
from ridgeline.report.views.optimized_phrases import tolerance_of

BENCHMARKS = Path(__file__).resolve().parent
EXAMPLES = BENCHMARKS.parent / "examples"
STEPS = 40
"""Of each run of `compare`."""
FAULTS = (
    *("few_workers", "loader_starves", "small_files", "workers_restart"),
    *("written_attention", "unfused_optimizer"),
)
"""Those that a CPU feels and a change can answer."""
NOTHING_TO_GAIN = BENCHMARKS / "gpu_programs" / "nothing_to_gain.py"
NOTHING = (
    *("matmul", "batched-matmul", "cholesky", "eigenvalues", "qr", "fft", "sort", "sparse"),
    *("numpy-environment", "decompression", "python-simulation", "service"),
)
"""Programs of that file. One call takes nearly all of a step, and no fix makes it faster."""
Agrees = Literal["yes", "undecided", "no", "not written"]


Group = Literal["example", "twin", "nothing to gain", "foreign"]


class Subject(Struct, frozen=True, kw_only=True):
    """A program."""

    script: str
    arguments: tuple[str, ...] = ()
    group: Group = "example"
    folder: str = ""
    """Where it lies; "" for examples/."""
    title: str = ""

    @property
    def name(self) -> str:
        return self.title or Path(self.script).stem

    @property
    def shown(self) -> str:
        """What stands for the program in the table."""
        return self.title or " ".join([Path(self.script).name, *self.arguments])


SUBJECTS = (
    Subject(script="train_gpt2.py", arguments=("--small",)),
    Subject(script="train_resnet50.py", arguments=("--small",)),
    Subject(script="train_slow_loader.py"),
    *(Subject(script=f"faults/{name}.py") for name in FAULTS),
    *(Subject(script=f"faults/{name}_fixed.py", group="twin") for name in FAULTS),
    *(
        Subject(
            script=NOTHING_TO_GAIN.name, arguments=(name,), group="nothing to gain",
            folder=str(NOTHING_TO_GAIN.parent), title=name,
        )
        for name in NOTHING
    ),
)  # fmt: skip
GROUPS: dict[Group, str] = {
    "example": "Examples and planted faults",
    "foreign": "Programs of other people",
    "twin": "Twins without the fault",
    "nothing to gain": "Nothing to gain",
}


class Figure(Struct, frozen=True, kw_only=True):
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None

    @property
    def text(self) -> str:
        if self.ratio is None or self.ci_low is None or self.ci_high is None:
            return "—"
        if self.ci_high > 1e3:  # of a single round
            return f"{self.ratio:.2f} [no interval]"
        return f"{self.ratio:.2f} [{self.ci_low:.2f}, {self.ci_high:.2f}]"


class Checked(Struct, frozen=True, kw_only=True):
    """A claim, and what `compare` says of it."""

    what: str
    claimed: Figure
    verdict: str
    found: Figure = Figure()
    why: str = ""

    @property
    def agrees(self) -> Agrees:
        named: dict[str, Agrees] = {
            "FASTER": "yes", "UNDECIDED": "undecided", "FAILED": "undecided", "": "not written",
        }  # fmt: skip
        return named.get(self.verdict, "no")


class Result(Struct, frozen=True, kw_only=True):
    subject: Subject
    checked: tuple[Checked, ...] = ()
    """What was kept."""
    spent_s: float = 0.0
    wall_s: float = 0.0
    """From starting the command to its end."""
    trials: int = 0
    step_ms: float | None = None
    """A step of the unchanged program; None if it was not measured."""
    raced: Figure = Figure()
    """What was kept, in the race."""
    sets: int | None = None
    """Sets of fixes that were raced; None if there was no race."""
    said: str = ""
    failed: str = ""


class Part(Struct, frozen=True, kw_only=True):
    device: str
    about: str
    results: tuple[Result, ...]


def ended(command: Sequence[str], folder: Path) -> tuple[Any, str]:
    """A command of ours with --json: its document, or its last words."""
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", *command], cwd=folder, capture_output=True, text=True
    )
    try:
        return json.loads(done.stdout), ""
    except ValueError:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return None, f"exit code {done.returncode}: {' '.join(lines[-3:])[:300]}"


def run(subject: Subject, asked: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as home:
        plain = Path(home, "0")
        ignored = shutil.ignore_patterns(".*", "optimized_*", "__pycache__")
        shutil.copytree(subject.folder or EXAMPLES, plain, ignore=ignored)
        words = ["optimize", "--json", "-q", "--budget", asked.budget]
        began_s = time.monotonic()
        found, failed = ended([*words, subject.script, *subject.arguments], plain)
        wall_s = time.monotonic() - began_s
        if failed:
            return Result(subject=subject, failed=failed, wall_s=wall_s)
        race = found["race"] or {}
        raced = race.get("ratio")
        return Result(
            subject=subject, checked=tuple(check(found, subject, plain, asked.check)),
            spent_s=found["spent_s"], wall_s=wall_s, trials=found["trials"],
            step_ms=found["baseline_ms"] or None, sets=race.get("measured") or None,
            raced=_figure(raced | {"ratio": raced["value"]}) if raced else Figure(),
            said=found["summary"],
        )  # fmt: skip


def check(found: Any, subject: Subject, plain: Path, budget: str) -> Iterator[Checked]:
    """Compare the copy that was written with the program as it was."""
    total = found["total"]["like_for_like"]
    kept = [row for row in found["ladder"] if row["kept"]]
    if not kept:
        return
    what = " + ".join(row["title"] for row in kept)
    if total is None or not found["confirmed"]:  # it is called a guess, and not claimed
        yield Checked(what=what, claimed=_figure(total or kept[-1]), verdict="", why="a guess")
        return
    claimed, copy = _figure(total), found["patched_script"]
    by_hand = (found["written"] or {}).get("by_hand")
    if copy is None or by_hand:
        yield Checked(what=what, claimed=claimed, verdict="", why="to be written by hand")
        return
    allowed = tolerance_of(msgspec.convert(total["parity_evidence"], Parity))
    words = ["compare", "--json", "-q", "--by", "step", "--steps", str(STEPS), "--budget", budget]
    words += ["--tolerance", f"{allowed:g}"] if allowed else []
    words += [subject.script, copy, "--", *subject.arguments]
    told, failed = ended(words, plain)
    if not failed and "verdict" not in told:
        failed = f"it could not be compared: {json.dumps(told['broken'])[:200]}"
    if failed:
        yield Checked(what=what, claimed=claimed, verdict="FAILED", why=failed)
        return
    why = told["why"] if told["verdict"] != "FASTER" else ""
    yield Checked(what=what, claimed=claimed, verdict=told["verdict"], found=_figure(told), why=why)


def _figure(row: Any) -> Figure:
    return Figure(ratio=row["ratio"], ci_low=row["ci_low"], ci_high=row["ci_high"])


def lines(result: Result) -> Iterator[str]:
    name = f"`{result.subject.shown}`"
    step = f"{result.step_ms:.3g} ms" if result.step_ms else ""
    spent = f"{result.sets or '—'} | {result.wall_s:.0f} s"
    if result.failed:
        yield f"| {name} | | it failed: {result.failed} | | | | no | {spent} |"
    elif not result.checked:
        raced = result.raced.text
        yield f"| {name} | {step} | nothing: {result.said} | {raced} | | | yes | {spent} |"
    for one in result.checked:
        verdict = one.verdict or "—"
        told = f"{verdict} {one.found.text}" if one.found.ratio is not None else verdict
        why = f" ({one.why})" if one.why else ""
        yield (
            f"| {name} | {step} | {one.what} | {result.raced.text} | {one.claimed.text} | "
            f"{told}{why} | {one.agrees} | {spent} |"
        )


def counted(results: Sequence[Result]) -> str:
    every = [one.agrees for result in results for one in result.checked]
    failed = sum(bool(result.failed) for result in results)
    spent = units.seconds(sum(result.spent_s for result in results))
    trials = sum(result.trials for result in results)
    parts = [
        f"{len(every)} claims over {len(results)} programs ({trials} trials in {spent}): "
        f"{every.count('yes')} confirmed, {every.count('no')} false, "
        f"{every.count('undecided')} undecided, {every.count('not written')} guesses or edits "
        "to make by hand."
    ]
    if failed:
        parts.append(f"{failed} programs could not be optimized.")
    return " ".join(parts)


def page(parts: Sequence[Part], note: str) -> str:
    """Return the page. Of a program that several runs have, it has the last. `note` says what the
    figures do not, such as which of the programs were at hand while the search was developed."""
    said = __doc__.split("\n\n")[2].replace("\n", " ")
    columns = (
        "program", "step", "kept", "in the race", "confirmed", "`ridgeline compare`", "agrees",
        "sets raced", "wall time",
    )  # fmt: skip
    head = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    made = ["# What is kept, confirmed", "", said, ""]
    made += [f"- {part.device}. {part.about}." for part in parts]
    made += ["", note, ""] if note else [""]
    every = {(one.subject.group, one.subject.name): one for part in parts for one in part.results}
    for group, title in GROUPS.items():
        mine = [result for result in every.values() if result.subject.group == group]
        if mine:
            rows = [row for result in mine for row in lines(result)]
            made += [f"## {title}", "", counted(mine), "", *head, *rows, ""]
    return "\n".join(made)


def measured(asked: argparse.Namespace) -> Part:
    gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if gpu else processor.name()
    about = f"{date.today()}, ridgeline {ridgeline.__version__}, torch {torch.__version__}, Python "
    about += f"{platform.python_version()}; {asked.budget} for each program, {asked.check} for each"
    load = os.getloadavg()[0]
    about += f" check; {os.cpu_count()} processors, {load:.0f} programs running at the start; "
    about += f"`python benchmarks/optimize.py {shlex.join(sys.argv[1:])}`"
    part = Part(device=name, about=about, results=())
    for subject in foreign(asked.foreign) if asked.foreign else SUBJECTS:
        if asked.only and subject.name not in asked.only:
            continue
        result = run(subject, asked)
        print(*lines(result), sep="\n", file=sys.stderr, flush=True)
        part = msgspec.structs.replace(part, results=(*part.results, result))
        if asked.save:  # after each, so that what was measured is never lost
            asked.save.write_bytes(msgspec.json.encode(part))
    return part


def foreign(file: Path) -> Iterator[Subject]:
    """Yield the programs that are named in a file."""
    for line in file.read_text().splitlines():
        if line.strip():
            name, folder, typed = (part.strip() for part in line.split(":", 2))
            script, *arguments = shlex.split(typed)
            yield Subject(
                script=script, arguments=tuple(arguments), group="foreign", title=name,
                folder=str(Path(folder).expanduser()),
            )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--foreign", type=Path, help="a file with programs of other people")
    parser.add_argument("--budget", default="5m", help="for optimizing a program")
    parser.add_argument("--check", default="3m", help="for comparing two copies")
    parser.add_argument("--save", type=Path, help="the results as JSON")
    parser.add_argument("--page", type=Path, nargs="+", help="make the page of saved results")
    parser.add_argument("--note", default="", help="a paragraph for the page")
    parser.add_argument("--out", type=Path, help="write the page here as well")
    asked = parser.parse_args()
    if asked.page:
        parts = [msgspec.json.decode(file.read_bytes(), type=Part) for file in asked.page]
    else:
        parts = [measured(asked)]
    text = page(parts, asked.note)
    print(text)
    if asked.out:
        asked.out.write_text(text)
    results = [result for part in parts for result in part.results]
    false = [one for result in results for one in result.checked if one.agrees == "no"]
    return 1 if false or any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
