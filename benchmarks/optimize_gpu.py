"""What `ridgeline optimize` makes of programs on a GPU, beside what a specialist makes of them.

    python benchmarks/optimize_gpu.py programs --into visit          all ten; minutes each
    python benchmarks/optimize_gpu.py programs --only vit,gcn --into visit
    python benchmarks/optimize_gpu.py programs --twins-only          plain and by hand alone
    python benchmarks/optimize_gpu.py programs --check               twins train alike; on a CPU
    python benchmarks/optimize_gpu.py --aa --into visit              nothing can be gained in these
    python benchmarks/optimize_gpu.py gpt2 --into visit              or: resnet50, batch, …
    python benchmarks/optimize_gpu.py --page visit -o docs/results/h200-optimize-programs.md

Every program is run as it is, then as a specialist tuned it by hand (that twin was written before
the optimizer was tried), and then `ridgeline optimize` is called on it as a person types it. The
copy that it writes is timed by the same clock. The page is made of what was measured: nothing on it
is typed in or chosen by hand.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PROGRAMS_FOLDER = ROOT / "benchmarks" / "gpu_programs"
MAX_OVERRUN_S = 60.0
"""An optimize that exceeds its budget by more is interrupted, as by Ctrl-C; 5 s are asked for."""
TIMING_LIMIT_S = 300.0
"""Longest run of a program under --time: starting, compiling and its steps."""
LOSS_TOLERANCE = 2e-4
"""Relative difference of losses printed by the small twins, on a CPU in float32."""


ANSWER = ("-o", "answer.md")


class Visit(Struct, frozen=True, kw_only=True):
    """An example, optimized with the options that people ask about."""

    title: str
    words: str
    """What stands after `ridgeline optimize --budget …`."""
    asked: str


class Program(Struct, frozen=True, kw_only=True):
    """A plain program and its hand-tuned twin."""

    title: str
    plain_steps: int
    """Steps of a timed run, half of which are warm-up: about ten seconds of them."""
    hand_steps: int


class Result(Struct, frozen=True, kw_only=True):
    """What was measured of a program in one visit."""

    name: str
    about: str
    plain_ms: float | None = None
    hand_ms: float | None = None
    command: str = ""
    budget: str = ""
    wall_s: float | None = None
    exit_code: int | None = None
    baseline_ms: float | None = None
    optimized_ms: float | None = None
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    confirmed: bool = False
    parity: str | None = None
    candidates: int | None = None
    kept: tuple[str, ...] = ()
    copy_ms: float | None = None
    """A step of the copy that was written, by the clock of the plain program and its twin."""
    problems: tuple[str, ...] = ()

    @property
    def hand_ratio(self) -> float | None:
        return self.plain_ms / self.hand_ms if self.plain_ms and self.hand_ms else None

    @property
    def share(self) -> float | None:
        """The optimizer's confirmed ratio over the specialist's; 1 / his where nothing was kept."""
        if self.hand_ratio is None or self.exit_code is None:
            return None
        return (self.ratio if self.confirmed and self.ratio else 1.0) / self.hand_ratio


VISITS = {
    "gpt2": Visit(
        title="GPT-2 124M, batch 8 × 1,024, AdamW, attention written out",
        words="examples/train_gpt2.py --steps 200",
        asked="By hand: 24.06 ms, 8.1 × the plain 194.5 ms.",
    ),
    "resnet50": Visit(
        title="ResNet-50, batch 32, SGD with momentum, nothing to load",
        words="examples/train_resnet50.py --resident --steps 1000",
        asked="By hand, on one batch kept on the device: 7.86 ms, 3.3 × the plain 25.98 ms.",
    ),
    "batch": Visit(
        title="ResNet-50 with the batch size free, nothing to load",
        words="--batch examples/train_resnet50.py --resident --steps 8000",
        asked="By hand: 6,502 images/s, 5.3 × the plain 1,232.",
    ),
    "loader": Visit(
        title="ResNet-50, fed by a DataLoader with four workers",
        words="examples/train_resnet50.py --steps 4000",
        asked="No figure was asked for.",
    ),
    "energy": Visit(
        title="ResNet-50, for energy",
        words="--goal energy examples/train_resnet50.py --resident --steps 1000",
        asked="No figure was asked for.",
    ),
}

PROGRAMS = {
    "nanogpt": Program(
        title="GPT of 124M, 16 × 512, attention written out", plain_steps=80, hand_steps=200
    ),
    "vit": Program(
        title="torchvision ViT-B/16, batch 64, 4 workers", plain_steps=60, hand_steps=300
    ),
    "trainer_bert": Program(
        title="Hugging Face Trainer, BERT-base, 64 × 128", plain_steps=100, hand_steps=300
    ),
    "accelerate_gpt2": Program(
        title="Accelerate, GPT-2 small, 8 × 512", plain_steps=120, hand_steps=300
    ),
    "lightning_resnet": Program(
        title="Lightning, ResNet-50, batch 64, 4 workers", plain_steps=150, hand_steps=400
    ),
    "dcgan": Program(title="DCGAN, two optimizers, batch 128", plain_steps=400, hand_steps=1000),
    "diffusion_unet": Program(
        title="Diffusion U-Net of 36M, 64 × 32 × 32", plain_steps=150, hand_steps=400
    ),
    "generate_llama": Program(
        title="generate, Llama of 1.1B, 4 × 256 + 64 tokens", plain_steps=16, hand_steps=60
    ),
    "lstm_lm": Program(title="LSTM language model, 64 × 64", plain_steps=150, hand_steps=400),
    "gcn": Program(
        title="torch-geometric GCN, whole graph, 2.2M edges", plain_steps=200, hand_steps=400
    ),
}

NOTHING_TO_GAIN = (
    "matmul", "batched-matmul", "cholesky", "eigenvalues", "qr", "fft", "sort", "sparse",
    "numpy-environment", "decompression", "python-simulation", "service",
)  # fmt: skip
"""Programs of `gpu_programs/nothing_to_gain.py`."""


def main() -> int:
    choices = ("programs", *VISITS)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=choices)
    parser.add_argument("--only", default="", metavar="NAME,NAME", help="these programs alone")
    parser.add_argument("--twins-only", action="store_true", help="time them, optimize nothing")
    parser.add_argument("--check", action="store_true", help="whether small twins train alike")
    parser.add_argument("--aa", action="store_true", help="programs in which nothing is to gain")
    parser.add_argument("--small", action="store_true", help="tiny programs: a smoke test on a CPU")
    parser.add_argument("--into", type=Path, default=Path("visit"), help="where results are kept")
    parser.add_argument("--budget", help="of a search; 5m for programs, 1m for --aa, 8m for visits")
    parser.add_argument(
        "--within", type=float, default=575, metavar="SECONDS",
        help="then a visit is interrupted as by Ctrl-C, which reports what was proven: a machine "
        "may be lent for ten minutes a command",
    )  # fmt: skip
    parser.add_argument("--page", type=Path, help="make the page of what is kept there")
    parser.add_argument("-o", "--output", type=Path, help="write the page here")
    args = parser.parse_args()
    if args.page:
        text = "\n".join(page(args.page)) + "\n"
        print(text)
        if args.output:
            args.output.write_text(text)
        return 0
    if not args.what and not args.aa:
        parser.error("say which: " + ", ".join(choices))
    if args.what in VISITS:
        return measure_visit(args.what, args.into, args.budget or "8m", args.within)
    known = NOTHING_TO_GAIN if args.aa else tuple(PROGRAMS)
    names = args.only.split(",") if args.only else known
    unknown = set(names) - set(known)
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    if args.check:
        return 1 if sum(not is_alike(name) for name in names) else 0
    if args.aa:
        return measure_nothing_to_gain(names, args.into, args.budget or "60s")
    budget = None if args.twins_only else args.budget or "5m"
    for name in names:
        result = measure_program(name, args.into, budget, args.small)
        print(table_row(result), flush=True)
    return 0


# Programs beside their hand-tuned twins.


def measure_program(name: str, into: Path, budget: str | None, small: bool) -> Result:
    """Time the plain program and its twin; then optimize the plain program within `budget`, if
    given, and time the copy."""
    home = into / "programs"
    home.mkdir(parents=True, exist_ok=True)
    for helper in PROGRAMS_FOLDER.glob("*.py"):
        shutil.copy(helper, home)
    folder = home / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PROGRAMS_FOLDER / name, folder, ignore=shutil.ignore_patterns(".*", "__*"))
    program, problems = PROGRAMS[name], list[str]()
    options = ["--small"] if small else []
    plain_steps, hand_steps = (20, 20) if small else (program.plain_steps, program.hand_steps)
    plain_ms = timed_ms(folder, "plain.py", plain_steps, options, problems)
    hand_ms = timed_ms(folder, "by_hand.py", hand_steps, options, problems)
    result = Result(
        name=name, about=about(), plain_ms=plain_ms, hand_ms=hand_ms, problems=tuple(problems)
    )
    if budget is not None:
        result = optimized(result, folder, ["plain.py", *options], budget)
        if result.confirmed and (folder / "optimized_plain.py").exists():
            copy_ms = timed_ms(folder, "optimized_plain.py", hand_steps, options, problems)
            result = msgspec.structs.replace(result, copy_ms=copy_ms, problems=tuple(problems))
    (folder / "result.json").write_bytes(msgspec.json.encode(result))
    return result


def timed_ms(
    folder: Path, script: str, steps: int, options: list[str], problems: list[str]
) -> float | None:
    """Return milliseconds a step by the program's own clock, which is the same in all of them."""
    command = [sys.executable, script, "--steps", str(steps), "--time", *options]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMING_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        problems.append(f"{script} took longer than {TIMING_LIMIT_S:.0f} s")
        return None
    (folder / f"{Path(script).stem}.txt").write_text(done.stdout + done.stderr)
    found = re.search(r"timing (\{.*\})", done.stdout)
    if done.returncode or found is None:
        problems.append(f"{script} ended with exit code {done.returncode}: {done.stderr[-500:]}")
        print(problems[-1], file=sys.stderr)
        return None
    return float(json.loads(found[1])["ms_per_step"])


def optimized(result: Result, folder: Path, words: list[str], budget: str) -> Result:
    """Return `result` with what `ridgeline optimize` reached on a program in `folder`."""
    typed = ["optimize", "--budget", budget, *words]
    began = time.monotonic()
    exit_code = run_optimize(typed[1:], folder, seconds(budget) + MAX_OVERRUN_S)
    wall_s = time.monotonic() - began
    text = (folder / "found.json").read_text()
    found: dict[str, Any] = json.loads(text) if text else {}
    total = (found.get("total") or {}).get("like_for_like") or {}
    return msgspec.structs.replace(
        result,
        command="ridgeline " + " ".join(typed),
        budget=budget,
        wall_s=wall_s,
        exit_code=exit_code,
        baseline_ms=found.get("baseline_ms"),
        optimized_ms=total.get("after_ms"),
        ratio=total.get("ratio"),
        ci_low=total.get("ci_low"),
        ci_high=total.get("ci_high"),
        confirmed=bool(total.get("confirmed")),
        parity=total.get("parity"),
        candidates=candidates_measured(found),
        kept=tuple(total.get("changes") or ()),
    )


def candidates_measured(found: dict[str, Any]) -> int:
    """Return how many fixes and sets of fixes were timed, in the race or in processes of their
    own."""
    contested = {
        (tuple(sorted(row["changes"])), tuple(sorted(row["beside"] or ())))
        for row in found.get("ladder", ())
        if row["kind"] == "rung" and row["ratio"] is not None
    }
    race = found.get("race") or {}
    return max(len(contested), race.get("measured") or 0)


def run_optimize(words: list[str], folder: Path, within_s: float) -> int:
    """Run `ridgeline optimize` in `folder`, keeping its answer as JSON and as text, and interrupt
    it after `within_s`."""
    command = [sys.executable, "-m", "ridgeline", "optimize", "--fresh", "--json", *ANSWER, *words]
    answer, progress = folder / "found.json", folder / "progress.txt"
    with answer.open("wb") as stdout, progress.open("wb") as stderr:
        process = subprocess.Popen(command, cwd=folder, stdout=stdout, stderr=stderr)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
    shutil.rmtree(folder / ".ridgeline", ignore_errors=True)
    return process.returncode


def is_alike(name: str) -> bool:
    """Return whether the small plain program and its twin print the same losses on this machine."""
    numbers: list[list[float]] = []
    for script in ("plain.py", "by_hand.py"):
        done = subprocess.run(
            [sys.executable, script, "--small", "--steps", "8", "--log-every", "2"],
            cwd=PROGRAMS_FOLDER / name, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            print(f"{name}: {script} ended with exit code {done.returncode}\n{done.stderr[-800:]}")
            return False
        losses = re.findall(r"(?:loss|checksum|Loss_[DG])\W+(\d+\.?\d*)", done.stdout)
        numbers.append([float(text) for text in losses])
    plain, by_hand = numbers
    alike = bool(plain) and len(plain) == len(by_hand) and all(
        abs(a - b) <= LOSS_TOLERANCE * max(1.0, abs(a)) for a, b in zip(plain, by_hand, strict=True)
    )  # fmt: skip
    verdict = "alike" if alike else f"differ: {plain} {by_hand}"
    print(f"{name}: {len(plain)} figures are {verdict}", flush=True)
    return alike


# Programs in which nothing can be gained.


def measure_nothing_to_gain(names: tuple[str, ...] | list[str], into: Path, budget: str) -> int:
    """Optimize each; return 1 if anything was kept, or a program could not be measured."""
    wrong = 0
    # One thread, as its operators' number of threads is a fix too, and may well help.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in names:
        folder = into / "aa" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(PROGRAMS_FOLDER / "nothing_to_gain.py", folder)
        empty = Result(name=name, about=about())
        result = optimized(empty, folder, ["nothing_to_gain.py", name], budget)
        (folder / "result.json").write_bytes(msgspec.json.encode(result))
        wrong += result.exit_code != 0 or result.confirmed
        print(aa_row(result), flush=True)
    print(f"{len(names) - wrong} of {len(names)} ended with nothing kept")
    return 1 if wrong else 0


# The examples.


def measure_visit(name: str, into: Path, budget: str, within_s: float) -> int:
    """Optimize an example in a copy of the examples, beside which the search writes its files."""
    home = into / name
    shutil.rmtree(home, ignore_errors=True)
    left_out = shutil.ignore_patterns(".*", "optimized_*", "faults", "pairs")
    shutil.copytree(EXAMPLES, home / "examples", ignore=left_out)
    words = f"--budget {budget} {VISITS[name].words}"
    exit_code = run_optimize(words.split(), home, within_s)
    (home / "command.txt").write_text(f"ridgeline optimize {words}")
    (home / "about.txt").write_text(about())
    print(answer_of(home))
    return exit_code


# The page.


def page(measured: Path) -> Iterator[str]:
    yield "# `ridgeline optimize` on a GPU\n"
    yield " ".join(__doc__.split("\n\n")[2].splitlines()) + "\n"
    results = [read_result(measured / "programs" / name) for name in PROGRAMS]
    known = [result for result in results if result is not None]
    if known:
        yield "## Ten programs beside their hand-tuned twins\n"
        yield f"{known[0].about}. Milliseconds a step, for `generate` a request of 64 tokens.\n"
        yield TABLE_HEAD
        yield from (table_row(result) for result in known)
        yield ""
        yield from (f"- {r.name}: {problem}" for r in known for problem in r.problems)
    controls = [read_result(measured / "aa" / name) for name in NOTHING_TO_GAIN]
    told = [result for result in controls if result is not None]
    if told:
        yield "## Programs in which nothing can be gained\n"
        yield f"{told[0].about}. Budget {told[0].budget} each.\n"
        yield "| program | step | candidates measured | wall time | kept |"
        yield "| --- | ---: | ---: | ---: | --- |"
        yield from (aa_row(result) for result in told)
        yield ""
    for name, visit in VISITS.items():
        home = measured / name
        if (home / "command.txt").exists():
            yield f"## {visit.title}\n"
            yield f"{(home / 'about.txt').read_text()}. {visit.asked}\n"
            yield from printed((home / "command.txt").read_text(), home)
    for result in known:
        if result.command:
            yield f"## {PROGRAMS[result.name].title}\n"
            yield from printed(result.command, measured / "programs" / result.name)


TABLE_HEAD = (
    "| program | plain | by hand | by hand, × | optimize, × | the copy | share of the hand's speed "
    "| wall time | candidates measured | kept |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
)


def table_row(result: Result) -> str:
    ratio = "–"
    if result.exit_code is not None:
        ratio = "nothing kept"
    if result.ratio is not None:
        ratio = f"{result.ratio:.2f} [{result.ci_low:.2f}, {result.ci_high:.2f}]"
        ratio += "" if result.confirmed else ", not confirmed"
    cells = (
        PROGRAMS[result.name].title,
        milliseconds(result.plain_ms),
        milliseconds(result.hand_ms),
        f"{result.hand_ratio:.2f}" if result.hand_ratio else "–",
        ratio,
        milliseconds(result.copy_ms),
        f"{result.share:.0%}" if result.share else "–",
        f"{result.wall_s:.0f} s" if result.wall_s is not None else "–",
        str(result.candidates) if result.candidates is not None else "–",
        ", ".join(result.kept) or "–",
    )
    return f"| {' | '.join(cells)} |"


def aa_row(result: Result) -> str:
    kept = ", ".join(result.kept) if result.confirmed else "nothing"
    if result.exit_code:
        kept = f"exit code {result.exit_code}"
    cells = (
        result.name,
        milliseconds(result.baseline_ms),
        str(result.candidates),
        f"{result.wall_s:.0f} s",
        kept,
    )
    return f"| {' | '.join(cells)} |"


def printed(command: str, folder: Path) -> Iterator[str]:
    yield f"    $ {command}\n"
    yield answer_of(folder) + "\n"


def answer_of(folder: Path) -> str:
    """The answer as text, without its comment and its picture, which stay where they were made."""
    path = folder / "answer.md"
    if not path.exists():
        return "There was no answer: " + (folder / "progress.txt").read_text()[-500:]
    text = re.sub(r"<!--.*?-->\n?", "", path.read_text(), flags=re.DOTALL)
    return re.sub(r"^!\[.*\n", "", text, flags=re.MULTILINE)


def read_result(folder: Path) -> Result | None:
    path = folder / "result.json"
    return msgspec.json.decode(path.read_bytes(), type=Result) if path.exists() else None


def milliseconds(value: float | None) -> str:
    return f"{value:.3g} ms" if value is not None else "–"


def seconds(budget: str) -> float:
    return float(budget[:-1]) * {"s": 1, "m": 60, "h": 3600}[budget[-1]]


def about() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return (
        f"{datetime.date.today()}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{device}, {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    sys.exit(main())
