"""How often honest changes are called equal, and changes that do less are not.

    OMP_NUM_THREADS=1 python benchmarks/parity.py --seeds 50

A tiny training program (tests/unit/parity) is run with each change, over seeds that draw its
weights, its data and its optimizer (AdamW and SGD in turn), and judged as `ridgeline optimize`
judges. Changes that do less are tried under each claim: that nothing is altered, rounding in
float32 with and without a jittered baseline, bfloat16 autocast by numbers alone, and with what the
optimizer was told. About 3 minutes on one core.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "unit" / "parity"))

from made_up_trials import candidate_of, trials_of_baseline
from parity_cases import CHEATS, FLOAT32, LOWER, NOTHING

from ridgeline.equality.trials.parity import compare
from ridgeline.records.parity import Alters, Parity
from ridgeline.records.trial import Trial

Counts = dict[tuple[str, str], Counter[str]]
CLAIMS = (
    "nothing",
    "float32",
    "float32, no jitter",
    "bfloat16, ulp jitter",
    "bfloat16",
    "bfloat16, told",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds")
    parser.add_argument("--missed", action="store_true", help="print each wrong verdict's reason")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    honest: Counts = {}
    cheats: Counts = {}
    start = perf_counter()
    done = 0
    for seed in range(arguments.seeds):
        if perf_counter() - start > arguments.limit:
            break
        _seed(seed, honest, cheats, arguments.missed)
        done += 1
    print(f"{done} seeds, {perf_counter() - start:.0f} s\n")
    print("Honest changes: times called equal / weak / differs\n")
    _print(honest, sorted({claim for _, claim in honest}))
    print("\nChanges that do less: times called equal / weak / differs\n")
    _print(cheats, CLAIMS)
    return 0 if done == arguments.seeds else 1


def _seed(seed: int, honest: Counts, cheats: Counts, missed: bool) -> None:
    whole = trials_of_baseline(seed, told=True)
    baseline = [_numbers(trial) for trial in whole]
    bare = [trial for trial in baseline if not trial.jitter]

    def note(
        counts: Counts, row: str, column: str, parity: Parity, wanted: tuple[str, ...]
    ) -> None:
        counts.setdefault((row, column), Counter())[parity.equality] += 1
        if missed and parity.equality not in wanted:
            print(f"seed {seed}: {row} as {column}: {parity.equality}: {parity.why}")

    fine = ("equal", "weak")
    for row, changes in NOTHING.items():
        note(honest, row, "nothing", compare(bare, _run(seed, changes), "nothing"), fine)
    lower: dict[str, tuple[str, dict[str, Any]]] = {
        row: ("float32", changes) for row, changes in FLOAT32.items()
    }
    for row, (precision, changes) in {**lower, **LOWER}.items():
        trial = _run(seed, changes)
        with_jitter = compare(baseline, trial, "rounding", precision)
        note(honest, row, "rounding", with_jitter, fine)
        small = compare(
            [one for one in baseline if one.jitter < 1e-6], trial, "rounding", precision
        )
        note(honest, row, "rounding, ulp jitter", small, fine)
        without = compare(bare, trial, "rounding", precision)
        note(honest, row, "rounding, no jitter", without, fine)
    for row, changes, own in _cheats(seed):
        trials = own or whole
        for column, parity in _claims(seed, changes, trials):
            note(cheats, row, column, parity, ("differs",))


def _cheats(seed: int) -> list[tuple[str, dict[str, Any], list[Trial]]]:
    rows: list[tuple[str, dict[str, Any], list[Trial]]] = [
        (row, changes, []) for row, changes in CHEATS.items()
    ]
    poisoned = {"poison": 5}
    own = trials_of_baseline(seed, told=True, **poisoned)
    rows.append(("NaN made into zero", {**poisoned, "nan_to_zero": True}, own))
    return rows


def _claims(seed: int, changes: dict[str, Any], whole: list[Trial]) -> list[tuple[str, Parity]]:
    plain = _numbers(_run(seed, changes))
    low = _run(seed, {**changes, "autocast": "bfloat16", "told": True})
    numbers = [_numbers(trial) for trial in whole]
    bare = [trial for trial in numbers if not trial.jitter]
    small = [trial for trial in numbers if trial.jitter < 1e-6]
    judged: list[tuple[list[Trial], Trial, Alters, str]] = [
        (bare, plain, "nothing", "float32"),
        (numbers, plain, "rounding", "float32"),
        (bare, plain, "rounding", "float32"),
        (small, _numbers(low), "rounding", "bfloat16"),
        (numbers, _numbers(low), "rounding", "bfloat16"),
        (whole, low, "rounding", "bfloat16"),
    ]
    return [(claim, compare(*each)) for claim, each in zip(CLAIMS, judged, strict=True)]


def _run(seed: int, changes: dict[str, Any]) -> Trial:
    return candidate_of(seed, **changes)


def _numbers(trial: Trial) -> Trial:
    """Without what the optimizer was told: a program may have written its own."""
    watched = tuple(replace(step, learning_rate=None) for step in trial.watched)
    tensors = tuple(replace(tensor, dtype="") for tensor in trial.tensors)
    return replace(trial, watched=watched, tensors=tensors, settings=())


def _print(counts: Counts, columns: tuple[str, ...] | list[str]) -> None:
    rows = list(dict.fromkeys(row for row, _ in counts))
    print(f"| change | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
    for row in rows:
        cells = []
        for column in columns:
            found = counts.get((row, column))
            order = ("equal", "weak", "differs")
            cells.append("" if found is None else " / ".join(str(found[name]) for name in order))
        print(f"| {row} | {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())
