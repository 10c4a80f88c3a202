"""How often identical code is called different, and how often slower code is found.

    python benchmarks/false_alarms.py --markdown docs/results/false-alarms.md

Ridgeline with its looks against what else is done: A fully, then B, and a test or a threshold. On
simulated noise with fixed seeds, where the figures are the same on every machine, and on this
machine as it is. About 4 minutes, of which --budget (120 s) are measured.
"""

import argparse
import math
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace
from peer_rules import (
    Floats,
    Verdict,
    do_bench,
    mann_whitney,
    measurement,
    pytest_benchmark,
    torch_intervals,
    torch_table,
    welch,
)
from torch.utils.benchmark import Measurement, Timer

from ridgeline.comparison.preparation import settled
from ridgeline.comparison.selftest import EFFECTS, THRESHOLD, one_candidate, prepare, table_of, take
from ridgeline.records.comparison import Surroundings
from ridgeline.statistics.analysis import RoundTable, analyse
from ridgeline.statistics.paired import estimate
from ridgeline.statistics.significance import plan_looks, wilson
from ridgeline.statistics.simulation import sequential_samples, simulated_rounds
from ridgeline.units import plural

ROUNDS = 60
RUNS = {0.2: 400, 0.0: 200}
"""Simulated runs of each effect, by drift; a rate of 5 % is known to ± 2 % after 400."""
LOOKS = plan_looks(ROUNDS)
WORKED = "ridgeline, on real extra work"
RULES: dict[str, Callable[["Trial"], Verdict | None]] = {
    "ridgeline": lambda t: with_looks(t.rounds),
    WORKED: lambda t: with_looks(t.worked) if t.worked is not None else None,
    "A then B, Welch's t test": lambda t: welch(t.first, t.second),
    "A then B, Mann-Whitney": lambda t: mann_whitney(t.first, t.second),
    "torch.utils.benchmark, its intervals": lambda t: torch_intervals(*t.timers),
    "torch.utils.benchmark, its table": lambda t: torch_table(*t.timers),
    "pytest-benchmark, median:5%": lambda t: pytest_benchmark(t.first, t.second),
    "do_bench, means 2 % apart": lambda t: do_bench(t.first, t.second),
}


class Trial(NamedTuple):
    """One candidate of which the truth is known, timed each way."""

    effect: float
    rounds: RoundTable
    first: Floats
    second: Floats
    timers: tuple[Measurement, Measurement]
    worked: RoundTable | None = None
    """The same rounds with a candidate that really does more, where that was measured."""


class Table(Struct):
    title: str
    rates: dict[str, dict[float, list[Verdict]]]
    warned: float
    """Share of torch.utils.benchmark's measurements that carry its own warning."""
    seen: dict[float, float]
    """The slowdown that the rounds with real extra work show, by effect."""


def with_looks(table: RoundTable) -> Verdict:
    """As `compare` goes: looks at 15, 30 and 60 rounds, each at its level, ending when settled."""
    verdict: Verdict = "UNDECIDED"
    for rounds, level in zip(LOOKS.rounds, LOOKS.alphas, strict=True):
        part = RoundTable(samples=table.samples[:rounds], positions=table.positions[:rounds])
        found = analyse(part, alpha=level, threshold=THRESHOLD)
        verdict = found.verdicts[0]
        if settled(verdict, found.estimates[0], THRESHOLD):
            break
    return verdict


def simulated(drift: float) -> Iterator[Trial]:
    for effect in EFFECTS:
        slower = 1 + effect
        for seed in range(RUNS[drift]):
            rounds = simulated_rounds(ROUNDS, effects=(1, 1, slower), drift=drift, seed=seed)
            first, second = sequential_samples(ROUNDS, effect=slower, drift=drift, seed=seed)
            timers = (measurement(first), measurement(second))
            yield Trial(effect, rounds, first, second, timers)


def measured(budget_s: float, say: Callable[[str], None]) -> tuple[list[Trial], Surroundings, str]:
    """Windows as `selftest` takes them, each followed by torch.utils.benchmark itself on the
    baseline and on the identical candidate. The identical candidate's samples are scaled by the
    effect for all procedures alike; beside it, rounds with candidates that do real extra work."""
    prepared = prepare(torch.device("cpu"), budget_s, say)
    product = prepared.product
    timers: list[tuple[Measurement, Measurement]] = []

    def between() -> None:
        prepared.calibrate()
        say("torch.utils.benchmark")
        timers.append((_timed(product), _timed(product)))

    prepared.host.begin_rounds()
    taken = take(
        prepared.shots, length=ROUNDS, limit_ns=1e9 * budget_s, now_ns=perf_counter_ns, seed=0,
        between=between, say=say,
    )  # fmt: skip
    surroundings = prepared.host.end_rounds()
    trials = []
    for window, in_turn, (one, other) in zip(taken.rounds, taken.sequences, timers, strict=True):
        table = table_of(window, prepared.by_events)
        identical = one_candidate(table, 2)
        first, second = in_turn.samples(prepared.by_events)
        for arm, effect in enumerate(EFFECTS, start=2):
            slower = 1 + effect
            scaled = measurement(np.array(other.times) * 1e9 * slower)
            rounds = replace(identical, samples=identical.samples * [1, 1, slower])
            worked = one_candidate(table, arm) if effect else identical
            trials.append(Trial(effect, rounds, first, second * slower, (one, scaled), worked))
    return trials, surroundings, str(product)


def _timed(call: Callable[[], object]) -> Measurement:
    """For as long as 60 samples of 10 ms; it sizes its blocks itself."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=ROUNDS * 10e-3)


def judged(title: str, trials: Iterable[Trial], say: Callable[[str], None]) -> Table:
    rates: dict[str, dict[float, list[Verdict]]] = {name: {} for name in RULES}
    warned: list[bool] = []
    logs: dict[float, list[float]] = {}
    for at, trial in enumerate(trials, start=1):
        say(f"{title}: {at}")
        for name, rule in RULES.items():
            verdict = rule(trial)
            if verdict is not None:
                rates[name].setdefault(trial.effect, []).append(verdict)
        warned += [timer.has_warnings for timer in trial.timers]
        if trial.worked is not None:
            samples = trial.worked.samples
            found = estimate(samples[:, :2], samples[:, 2], alpha=0.05, seed=0)
            logs.setdefault(trial.effect, []).append(-math.log(found.ratio))
    seen = {effect: math.expm1(sum(values) / len(values)) for effect, values in logs.items()}
    used = {name: verdicts for name, verdicts in rates.items() if verdicts}
    return Table(title, used, sum(warned) / len(warned), seen)


def cells(verdicts: dict[float, list[Verdict]]) -> Iterator[str]:
    """Identical code called different, then each effect found, then the wrong way round."""
    for effect, said in sorted(verdicts.items()):
        counted = Counter(said)
        called = counted["SLOWER"] + (counted["FASTER"] if effect == 0 else 0)
        rate = wilson(called, len(said))
        yield f"{100 * called / len(said):.1f} % [{100 * rate.low:.0f}, {100 * rate.high:.0f}]"
    slower = [verdict for effect, said in verdicts.items() if effect for verdict in said]
    yield f"{100 * slower.count('FASTER') / len(slower):.1f} %"


def lines(table: Table) -> list[str]:
    """A Markdown table, aligned, so that it reads in a terminal as well."""
    header = ["procedure", "identical, called different"]
    header += [f"{effect:.0%} slower, found".replace("%", " %") for effect in EFFECTS[1:]]
    header += ["slower, called faster"]
    rows = [[name, *cells(verdicts)] for name, verdicts in table.rates.items()]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        padded = [row[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    share = f"{100 * table.warned:.0f} %"
    shown = ", ".join(f"{100 * seen:.1f} %" for _, seen in sorted(table.seen.items()))
    looked = [f"Extra work of 0, 2, 5 and 10 % looked in its rounds like {shown}.", ""]
    return [
        f"## {table.title}", "", line(header), line(rule), *map(line, rows), "",
        f"torch.utils.benchmark warns of a wide spread in {share} of its measurements.", "",
        *(looked if shown else []),
    ]  # fmt: skip


def page(tables: Sequence[Table], around: Surroundings, workload: str, command: str) -> str:
    host = "; ".join(around.sentences) or "nothing disturbed it"
    threads = plural(around.threads, "thread")
    return "\n".join(
        [
            "# False alarms",
            "",
            f"{date.today()}; torch {torch.__version__}, numpy {np.__version__}, Python "
            f"{platform.python_version()}, {around.device}, {threads}; made by "
            f"`{command}`.",
            "",
            f"How often each procedure called identical code different, and found code that is 2, "
            f"5 and 10 % slower, with 95 % intervals (Wilson); {ROUNDS} samples an arm. Ridgeline: "
            f"rounds in shuffled order, looks after {', '.join(map(str, LOOKS.rounds))}, 5 % for "
            f"all of them, threshold 2 %: of what is 2 % slower half can be found at best. "
            "All others: A fully, then B. pytest-benchmark's rule can only call slower. do_bench "
            "uses ten samples of each, as its 100 ms are. The rules are in "
            "`benchmarks/peer_rules.py`.",
            "",
            f"Simulated: an AR(1) of 0.45 with a spread of 10 %, seeds fixed. Measured: "
            f"a {workload}, samples of 10 ms or more, in windows of {ROUNDS} rounds; slower "
            "candidates by scaling the identical one's samples, for all alike, and in one row by "
            f"real extra work; torch.utils.benchmark is run itself. The host meanwhile: {host}.",
            "",
            *(text for table in tables for text in lines(table)),
        ]
    ).rstrip() + "\n"  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of measuring")
    parser.add_argument("--markdown", type=Path, help="write the page here as well")
    asked = parser.parse_args()

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    trials, around, workload = measured(asked.budget, say)
    tables = [judged(f"Simulated, {_drift(drift)}", simulated(drift), say) for drift in RUNS]
    windows = f"{len(trials) // len(EFFECTS)} windows of {ROUNDS} rounds"
    tables.append(judged(f"Measured, this machine, {windows}", trials, say))
    say("")
    text = page(tables, around, workload, _command())
    print(text, end="")
    if asked.markdown:
        asked.markdown.write_text(text)


def _drift(drift: float) -> str:
    moved = f"{100 * drift:.0f} % drift" if drift else "no drift"
    return f"{moved}, {RUNS[drift]} runs each"


def _command() -> str:
    """As typed, with what was set for it."""
    threads = os.environ.get("OMP_NUM_THREADS")
    return " ".join([*([f"OMP_NUM_THREADS={threads}"] if threads else []), "python", *sys.argv])


if __name__ == "__main__":
    main()
