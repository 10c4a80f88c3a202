"""What changes put on from outside do to the two training examples, and whether results stay equal.

    python benchmarks/trials.py                 GPT-2 124M and ResNet-50, on a GPU
    python benchmarks/trials.py --small         the small ones, on a CPU

Each row is one trial: the script in a process of its own with a set of changes, its first eight
steps watched, the rest timed. One trial a row: a look, with no interval; `ridgeline.optimization`
repeats and alternates them.
"""

import argparse
import tempfile
from pathlib import Path

from ridgeline import units
from ridgeline.equality.trials.parity import compare
from ridgeline.harness.trials.trial_process import run
from ridgeline.optimization.contest import typical_ms
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial
from ridgeline.report.reasons import explain

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STEPS = 34
JITTERS = {True: (2.0**-23,), False: (2.0**-23, 2.0**-8)}
"""Baselines moved by rounding alone, of float32 and of bfloat16."""
ON_A_CPU = (("fused-optimizer",), ("fused-optimizer", "compile"))
ON_A_GPU = {
    "train_gpt2.py": (
        ("tf32", "fused-optimizer", "autocast"),
        ("tf32", "fused-optimizer", "autocast", "compile"),
    ),
    "train_resnet50.py": (
        ("tf32", "fused-optimizer", "autocast"),
        ("tf32", "fused-optimizer", "autocast", "channels-last", "compile-reduce-overhead"),
    ),
}


def trial(
    script: str, fixes: tuple[str, ...], small: bool, home: Path, jitter: float = 0.0
) -> Trial | str:
    given = ("--steps", str(2 * STEPS), *(["--small"] if small else []))
    target = Target(kind="script", name=str(EXAMPLES / script), arguments=given)
    plan = Plan(
        fixes=tuple(Asked(fix=name) for name in fixes),
        steps=STEPS,
        draws="eager",
        jitter=jitter,
    )
    found = run(target, plan, home / script / ("-".join(fixes) or "plain"), timeout_s=300)
    return found.trial if found.trial is not None else found.failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="on a CPU")
    small = parser.parse_args().small
    print("| script | changes | step | as fast | peak | compiling | results |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for script, sets in ON_A_GPU.items():
            plain = trial(script, (), small, Path(folder))
            if isinstance(plain, str):
                print(f"| {script} | none | {plain} |", flush=True)
                continue
            rows: list[tuple[tuple[str, ...], Trial | str]] = [((), plain)]
            rows += [
                (fixes, trial(script, fixes, small, Path(folder)))
                for fixes in (ON_A_CPU if small else sets)
            ]
            moved = [trial(script, (), small, Path(folder), size) for size in JITTERS[small]]
            baseline = [plain, *(one for one in moved if isinstance(one, Trial))]
            for fixes, found in rows:
                print(row(script, fixes, baseline, found), flush=True)


def row(script: str, fixes: tuple[str, ...], baseline: list[Trial], found: Trial | str) -> str:
    named = ", ".join(fixes) or "none"
    if isinstance(found, str):
        return f"| {script} | {named} | {found} |"
    before, after = typical_ms(baseline[:1]), typical_ms((found,))
    precision = "bfloat16" if "autocast" in fixes else "tf32" if "tf32" in fixes else "float32"
    parity = compare(baseline, found, "rounding", precision) if fixes else None
    missing = ", ".join(
        f"{one.fix} not applied: {explain(one.reason)}" for one in found.not_applied
    )
    equal = parity.why if parity is not None else ""
    if parity is not None and parity.equality != "differs":
        equal = f"{parity.equality}: {equal}"
    cells = [
        script, named, units.seconds(after / 1e3), f"{before / after:.2f} ×",
        units.bytes_(found.peak_bytes), units.seconds(found.compile_s) if found.compile_s else "",
        "; ".join(part for part in (equal, missing) if part),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
