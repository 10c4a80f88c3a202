"""Is what `ridgeline optimize` keeps really faster? Asked of `ridgeline compare`, change by change.

    python benchmarks/optimize.py --save cpu.json --out docs/results/cpu-optimize.md     two hours
    python benchmarks/optimize.py --only train_slow_loader --budget 2m --check 1m
    python benchmarks/optimize.py --page cpu.json

Each program is optimized on its own. Each change that was kept is then written into a copy of the
source, on top of those kept before it, and `ridgeline compare` runs the copy against the one
without it: other processes, another timer, another statistic, and losses compared once more, as far
apart as the report itself says to allow; then the whole against the program as it was. FASTER
confirms it. SAME, SLOWER and INVALID are false wins. UNDECIDED is neither, and counted apart, as is
what could not be written into the source. The programs are training examples, planted faults, and
the faults' twins, in which there is little or nothing to win: there, too, nothing may be kept that
`compare` does not confirm. One program after the other, with nothing else running; the exit code is
1 where there was a false win.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
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
from ridgeline.optimization.patching import patches
from ridgeline.records.parity import Parity
from ridgeline.records.trial import Applied
from ridgeline.report.views.optimized_phrases import tolerance_of

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STEPS = 40
"""Of each run of `compare`."""
FAULTS = (
    *("few_workers", "loader_starves", "small_files", "workers_restart"),
    *("written_attention", "unfused_optimizer"),
)
"""Those that a CPU feels and a change can answer."""
Agrees = Literal["yes", "undecided", "no", "not written"]


class Subject(Struct, frozen=True, kw_only=True):
    """A program, below examples/."""

    script: str
    arguments: tuple[str, ...] = ()
    clean: bool = False
    """Nothing was planted."""

    @property
    def name(self) -> str:
        return Path(self.script).stem


SUBJECTS = (
    Subject(script="train_gpt2.py", arguments=("--small",)),
    Subject(script="train_resnet50.py", arguments=("--small",)),
    Subject(script="train_slow_loader.py"),
    *(Subject(script=f"faults/{name}.py") for name in FAULTS),
    *(Subject(script=f"faults/{name}_fixed.py", clean=True) for name in FAULTS),
)


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
        named: dict[str, Agrees] = {"FASTER": "yes", "UNDECIDED": "undecided", "": "not written"}
        return named.get(self.verdict, "no")


class Result(Struct, frozen=True, kw_only=True):
    subject: Subject
    checked: tuple[Checked, ...] = ()
    """Change by change; the last is the whole, where there are several."""
    spent_s: float = 0.0
    trials: int = 0
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
        shutil.copytree(EXAMPLES, plain, ignore=shutil.ignore_patterns(".*", "optimized_*"))
        words = ["optimize", "--json", "-q", "--no-write", "--budget", asked.budget]
        found, failed = ended([*words, subject.script, *subject.arguments], plain)
        if failed:
            return Result(subject=subject, failed=failed)
        checked = tuple(check(found, subject, plain, asked.check))
        return Result(
            subject=subject, checked=checked, spent_s=found["spent_s"], trials=found["trials"],
            said=found["summary"],
        )  # fmt: skip


def check(found: Any, subject: Subject, plain: Path, budget: str) -> Iterator[Checked]:
    """Change by change, then the whole."""
    total = found["total"]["like_for_like"]
    rows = [row for row in found["ladder"] if row["kept"]]
    if total is None:  # no time to confirm: it is claimed all the same, and nothing was put on last
        for row in rows:
            yield Checked(what=row["title"], claimed=_figure(row), verdict="", why="not confirmed")
        return
    applied = msgspec.convert(total["applied"], tuple[Applied, ...])
    allowed = tolerance_of(msgspec.convert(total["parity_evidence"], Parity))
    asked = Asked(subject, budget, allowed)
    if len(rows) == 1:  # the figure of fresh processes: that of the search was chosen
        rows = [rows[0] | {name: total[name] for name in ("ratio", "ci_low", "ci_high")}]
    else:
        rows = list(_without(rows))
    before, on = plain, set[str]()
    for number, row in enumerate(rows, 1):
        on |= set(row["changes"])
        after = plain.with_name(str(number))
        left = _write(plain, after, subject, [one for one in applied if one.fix in on])
        missing = sorted(set(row["changes"]) & set(left))
        if missing:
            why = f"to be written by hand: {', '.join(missing)}"
            yield Checked(what=row["title"], claimed=_figure(row), verdict="", why=why)
        else:
            yield _compared(row["title"], _figure(row), before, after, asked)
        before = after
    if len(rows) > 1:
        yield _compared("all of it", _figure(total), plain, before, asked)


def _without(rows: Sequence[Any]) -> Iterator[Any]:
    """Each as against the program without the change: four workers were kept for being better than
    two, which are not in the source that `compare` is given."""
    before = 1.0
    for row in rows:
        times = row["baseline_ratio"] / before / row["ratio"]
        yield row | {name: times * row[name] for name in ("ratio", "ci_low", "ci_high")}
        before = row["baseline_ratio"]


def _write(plain: Path, to: Path, subject: Subject, applied: Sequence[Applied]) -> tuple[str, ...]:
    """The whole tree, with these changes in its files; those that could not be written."""
    shutil.copytree(plain, to, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    made = patches(plain / subject.script, applied)
    for file in made.files:
        inside = (Path.cwd() / file.file).resolve().relative_to(plain.resolve())
        (to / inside).write_text(file.text, encoding=file.encoding)
    return made.missing


class Asked(Struct, frozen=True):
    """Of `compare`."""

    subject: Subject
    budget: str
    tolerance: float | None


def _compared(what: str, claimed: Figure, before: Path, after: Path, asked: Asked) -> Checked:
    subject = asked.subject
    words = ["compare", "--json", "-q", "--by", "step", "--steps", str(STEPS)]
    words += ["--budget", asked.budget]
    words += ["--tolerance", f"{asked.tolerance:g}"] if asked.tolerance else []
    words += [str(before / subject.script), str(after / subject.script)]
    found, failed = ended([*words, "--", *subject.arguments], before.parent)
    if not failed and "verdict" not in found:
        failed = f"it could not be compared: {json.dumps(found['broken'])[:200]}"
    if failed:
        return Checked(what=what, claimed=claimed, verdict="FAILED", why=failed)
    return Checked(
        what=what, claimed=claimed, verdict=found["verdict"], found=_figure(found),
        why=found["why"] if found["verdict"] != "FASTER" else "",
    )  # fmt: skip


def _figure(row: Any) -> Figure:
    return Figure(ratio=row["ratio"], ci_low=row["ci_low"], ci_high=row["ci_high"])


def lines(result: Result) -> Iterator[str]:
    name = f"`{' '.join([Path(result.subject.script).name, *result.subject.arguments])}`"
    if result.failed:
        yield f"| {name} | it failed: {result.failed} | | | no |"
    elif not result.checked:
        yield f"| {name} | nothing: {result.said} | | | yes |"
    for one in result.checked:
        verdict = one.verdict or "—"
        told = f"{verdict} {one.found.text}" if one.found.ratio is not None else verdict
        why = f" ({one.why})" if one.why else ""
        yield f"| {name} | {one.what} | {one.claimed.text} | {told}{why} | {one.agrees} |"


def counted(results: Sequence[Result]) -> str:
    every = [one.agrees for result in results for one in result.checked]
    failed = sum(bool(result.failed) for result in results)
    spent = units.seconds(sum(result.spent_s for result in results))
    trials = sum(result.trials for result in results)
    parts = [
        f"{len(every)} claims over {len(results)} programs ({trials} trials in {spent}): "
        f"{every.count('yes')} confirmed, {every.count('no')} false, "
        f"{every.count('undecided')} undecided, {every.count('not written')} not in the source."
    ]
    if failed:
        parts.append(f"{failed} programs could not be optimized.")
    return " ".join(parts)


def page(part: Part) -> str:
    said = __doc__.split("\n\n")[2].replace("\n", " ")
    head = ["| program | kept | claimed | `ridgeline compare` | agrees |", "|" + " --- |" * 5]
    made = ["# What is kept, confirmed", "", said, "", f"{part.device}. {part.about}.", ""]
    for title, clean in (("Examples and planted faults", False), ("Twins without it", True)):
        mine = [result for result in part.results if result.subject.clean == clean]
        if mine:
            rows = [row for result in mine for row in lines(result)]
            made += [f"## {title}", "", counted(mine), "", *head, *rows, ""]
    return "\n".join(made)


def measured(asked: argparse.Namespace) -> Part:
    gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if gpu else processor.name()
    about = f"{date.today()}, ridgeline {ridgeline.__version__}, torch {torch.__version__}, Python "
    about += f"{platform.python_version()}; {asked.budget} for each program, {asked.check} for each"
    part = Part(device=name, about=f"{about} check", results=())
    for subject in SUBJECTS:
        if asked.only and subject.name not in asked.only:
            continue
        result = run(subject, asked)
        print(*lines(result), sep="\n", file=sys.stderr, flush=True)
        part = msgspec.structs.replace(part, results=(*part.results, result))
        if asked.save:  # after each, so that what was measured is never lost
            asked.save.write_bytes(msgspec.json.encode(part))
    return part


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [subject.name for subject in SUBJECTS]
    parser.add_argument("--only", nargs="*", default=[], choices=names, metavar="NAME")
    parser.add_argument("--budget", default="5m", help="for optimizing a program")
    parser.add_argument("--check", default="3m", help="for comparing two copies")
    parser.add_argument("--save", type=Path, help="the results as JSON")
    parser.add_argument("--page", type=Path, help="make the page of saved results")
    parser.add_argument("--out", type=Path, help="write the page here as well")
    asked = parser.parse_args()
    part = (
        msgspec.json.decode(asked.page.read_bytes(), type=Part) if asked.page else measured(asked)
    )
    text = page(part)
    print(text)
    if asked.out:
        asked.out.write_text(text)
    false = [one for result in part.results for one in result.checked if one.agrees == "no"]
    return 1 if false or any(result.failed for result in part.results) else 0


if __name__ == "__main__":
    sys.exit(main())
