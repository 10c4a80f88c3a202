"""The self-test: code whose truth is known (a matrix product, and the same with real extra work)
is compared in windows of rounds, and the wrong verdicts are counted.

The extra is work. It is neither time added to samples nor a wait until a clock says so: on a busy
host a call of 2.6 ms of processor time took 6.7 ms of wall time, and waiting for 10 % of the wall
time looked like 30 %. So the calling thread spins through as many turns as 10 % of its own
processor time hold; a GPU spins on the same stream.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Literal

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.comparison.contenders import BASELINE, Say
from ridgeline.comparison.host import Host
from ridgeline.comparison.preparation import even_calls, events_agree, kept, sample_ns
from ridgeline.harness.usercode.workload import Workload
from ridgeline.measure.clock import Clock, clock_for
from ridgeline.measure.timing import Block, Round, Rounds, Shot
from ridgeline.records.facts import Verdict
from ridgeline.records.selftest import MIN_WINDOWS, Bench, Procedure, SelfTest, Source, Tally
from ridgeline.statistics.analysis import RoundTable, analyse
from ridgeline.statistics.samples import lag1_correlation
from ridgeline.statistics.significance import welch_p_value, wilson
from ridgeline.statistics.simulation import sequential_samples, simulated_rounds

Spend = Callable[[float], None]
"""Spends this many nanoseconds of the processor's time."""

SIZES = {"cpu": 384, "cuda": 3072}
"""Rows of the matrices. A product takes about 1 ms: some ten fit into a sample, and 2 % of it are a
thousand turns."""
CALIBRATION_CALLS = 20
CALIBRATION_TURNS = 200_000
"""About 4 ms of spinning on a CPU."""
CALIBRATION_CYCLES = 1_000_000
"""0.5 to 1 ms on a GPU, of which the launch is a few µs."""


class Product:
    """The baseline: a float32 matrix product into memory of its own."""

    def __init__(self, device: torch.device) -> None:
        self.size = SIZES[device.type]
        generator = torch.Generator().manual_seed(0)
        shape = (self.size, self.size)
        self._left, self._right = (
            torch.randn(shape, generator=generator).to(device) for _ in range(2)
        )
        self._out = torch.empty(shape, device=device)

    def __call__(self) -> torch.Tensor:
        return torch.mm(self._left, self._right, out=self._out)

    def __str__(self) -> str:
        return f"{self.size} × {self.size} matrix product"


class Slowed:
    """A call with extra work: a share of the call's own time."""

    def __init__(self, call: Callable[[], object], effect: float, spend: Spend) -> None:
        self._call = call
        self._spend = spend
        self.effect = effect
        self.extra_ns = 0.0

    def __call__(self) -> object:
        result = self._call()
        self._spend(self.extra_ns)
        return result


def calibrate(slowed: Sequence[Slowed], call_ns: float) -> None:
    for one in slowed:
        one.extra_ns = one.effect * call_ns


def work_of(call: Callable[[], object], device: torch.device, clock: Clock) -> float:
    """Return the nanoseconds that a call takes of the processor on which the extra work is done:
    the calling thread's, or the GPU's."""
    if device.type == "cuda":
        return median(clock.time(call, 1).total_ns for _ in range(CALIBRATION_CALLS))
    return median(_thread_ns(call) for _ in range(CALIBRATION_CALLS))


def spender(device: torch.device, clock: Clock) -> Spend:
    """Return a function that does work on a device. Turns are counted, not timed, so that whatever
    slows the product slows them, too."""
    if device.type == "cuda":
        cycle_ns = (
            work_of(lambda: torch.cuda._sleep(CALIBRATION_CYCLES), device, clock)
            / CALIBRATION_CYCLES
        )
        return lambda ns: torch.cuda._sleep(round(ns / cycle_ns))
    turn_ns = work_of(lambda: _turn(CALIBRATION_TURNS), device, clock) / CALIBRATION_TURNS
    return lambda ns: _turn(round(ns / turn_ns))


def _turn(turns: int) -> None:
    for _ in range(turns):
        pass


def _thread_ns(call: Callable[[], object]) -> float:
    start = thread_time_ns()
    call()
    return thread_time_ns() - start


Floats = NDArray[np.float64]

ALPHA = 0.05
THRESHOLD = 0.02
EFFECTS = (0.0, 0.02, 0.05, 0.10)
"""The shares by which the candidates are really slower."""
SIMULATED_ROUNDS = 60
SIMULATED_RUNS = (400, 60, 60, 60)
"""Windows of each effect. One of 60 rounds takes 12 ms to judge: 7 s in all."""
SIMULATED_NOISE = "simulated: AR(1) of 0.45, spread 10 %, 20 % drift"


class Window(Struct, frozen=True):
    """Rounds of a baseline, its control and one candidate; and the baseline and the candidate timed
    one after the other."""

    effect: float
    rounds: RoundTable
    first: Floats
    second: Floats
    """Samples of the candidate, all after those of the baseline, `first`."""


class Judged(Struct, frozen=True):
    """The verdicts of both procedures on a window."""

    effect: float
    rounds: Verdict
    sequence: Verdict
    log_ratio: float
    """The rounds' estimate."""
    control_differs: bool


def judge(window: Window, seed: int = 0) -> Judged:
    found = analyse(window.rounds, alpha=ALPHA, threshold=THRESHOLD, seed=seed)
    return Judged(
        window.effect,
        found.verdicts[0],
        one_after_the_other(window.first, window.second),
        math.log(found.estimates[0].ratio),
        found.control.differs,
    )


def one_after_the_other(first: Floats, second: Floats) -> Verdict:
    """Return the verdict of Welch's t test on all of A, then all of B, which is what rounds
    replace. It cannot be SAME."""
    if welch_p_value(first, second) >= ALPHA:
        return "UNDECIDED"
    return "FASTER" if float(second.mean()) < float(first.mean()) else "SLOWER"


def count(judged: Sequence[Judged], *, source: Source, noise: str, rounds: int) -> Bench:
    """Count the verdicts on each effect, the smallest effect first. `rounds` is the length of a
    window."""
    tallies = []
    for effect in sorted({j.effect for j in judged}):
        of_effect = [j for j in judged if j.effect == effect]
        seen = math.expm1(-sum(j.log_ratio for j in of_effect) / len(of_effect))
        tallies += [
            tally("ridgeline", effect, [j.rounds for j in of_effect], seen),
            tally("sequential Welch", effect, [j.sequence for j in of_effect]),
        ]
    return Bench(
        source=source,
        noise=noise,
        rounds=rounds,
        tallies=tuple(tallies),
        controls_differ=sum(j.control_differs for j in judged if j.effect == 0.0),
    )


def tally(
    procedure: Procedure, effect: float, verdicts: Sequence[Verdict], seen: float | None = None
) -> Tally:
    said = Counter(verdicts)
    called = said["SLOWER"] + (said["FASTER"] if effect == 0.0 else 0)
    return Tally(
        procedure=procedure,
        effect=effect,
        windows=len(verdicts),
        faster=said["FASTER"],
        slower=said["SLOWER"],
        same=said["SAME"],
        undecided=said["UNDECIDED"],
        called=wilson(called, len(verdicts)),
        seen=seen,
    )


def one_candidate(table: RoundTable, variant: int) -> RoundTable:
    """Return the rounds as if only this candidate had run beside the baseline and its control."""
    columns = [0, 1, variant]
    places = table.positions[:, columns]
    return RoundTable(
        samples=table.samples[:, columns],
        positions=np.argsort(np.argsort(places, axis=1), axis=1),
        process=table.process,
    )


def simulated(seed: int, say: Say, runs: Sequence[int] = SIMULATED_RUNS) -> Bench:
    """Judge windows of simulated noise, which is the same on every machine."""
    judged = []
    for at, window in enumerate(_simulated_windows(seed, runs), start=1):
        say(f"simulated noise: window {at} of {sum(runs)}")
        judged.append(judge(window, seed))
    return count(judged, source="simulated", noise=SIMULATED_NOISE, rounds=SIMULATED_ROUNDS)


def _simulated_windows(seed: int, runs: Iterable[int]) -> Iterator[Window]:
    for effect, number in zip(EFFECTS, runs, strict=True):
        slower = 1.0 + effect
        for run in range(number):
            own = seed * 100_000 + run
            rounds = simulated_rounds(SIMULATED_ROUNDS, effects=(1.0, 1.0, slower), seed=own)
            pair = sequential_samples(SIMULATED_ROUNDS, effect=slower, seed=own)
            yield Window(effect, rounds, *pair)


LONG_WINDOW_ROUNDS, SHORT_WINDOW_ROUNDS = 60, 30
"""A comparison's usual number of rounds, or half of it if too few windows would fit."""


class InTurn(Struct, frozen=True):
    """All blocks of one variant, then all of the other."""

    first: tuple[Block, ...]
    second: tuple[Block, ...]

    def samples(self, by_events: bool) -> tuple[Floats, Floats]:
        """Return the nanoseconds of a call."""
        first, second = (
            [sample_ns(b, by_events) for b in variant] for variant in (self.first, self.second)
        )
        return np.array(first), np.array(second)


class Taken(Struct, frozen=True):
    """The windows that were completed."""

    rounds: tuple[tuple[Round, ...], ...]
    sequences: tuple[InTurn, ...]
    stopped: Literal["budget", "interrupted"]


def window_length(limit_ns: float, block_ns: float, variants: int) -> int:
    """Return the rounds of a window: the longer one if enough of them fit."""
    fitting = limit_ns / (LONG_WINDOW_ROUNDS * (variants + 2) * max(block_ns, 1.0))
    return LONG_WINDOW_ROUNDS if fitting >= MIN_WINDOWS else SHORT_WINDOW_ROUNDS


def take(
    shots: Sequence[Shot],
    *,
    length: int,
    limit_ns: float,
    now_ns: Callable[[], int],
    seed: int,
    between: Callable[[], None],
    say: Say,
) -> Taken:
    """Take windows until the limit, one at least, however long it takes. Shot 0 is the baseline's,
    shot 2 the identical candidate's. `between` is called between two windows."""
    rounds = Rounds(seed, now_ns)
    windows: list[tuple[Round, ...]] = []
    sequences: list[InTurn] = []
    start = now_ns()
    stopped: Literal["budget", "interrupted"] = "budget"
    try:
        while not windows or (now_ns() - start) * (1 + 1 / len(windows)) <= limit_ns:
            began_with, number = len(rounds.taken), len(windows) + 1
            ended = rounds.run(
                shots,
                until=(began_with + length,),
                limit_ns=math.inf,
                decide=lambda taken: False,
                on_round=lambda taken: say(f"window {number}, round {taken - began_with}"),  # noqa: B023
            )
            if ended == "interrupted":
                raise KeyboardInterrupt
            say(f"window {number}, one after the other")
            sequence = InTurn(*(tuple(shots[a]() for _ in range(length)) for a in (0, 2)))
            windows.append(tuple(rounds.taken[began_with:]))
            sequences.append(sequence)
            between()
    except KeyboardInterrupt:
        if not windows:
            raise
        stopped = "interrupted"
    return Taken(tuple(windows), tuple(sequences), stopped)


def judge_all(taken: Taken, by_events: bool, seed: int, say: Say) -> tuple[list[Judged], int]:
    """Judge each window with each candidate; return also how many rounds were left out. The
    sequence is the same for all: its second half is scaled by the effect, since timing three more
    variants would cost a third of the windows."""
    judged, discarded = [], 0
    for at, (window, sequence) in enumerate(zip(taken.rounds, taken.sequences, strict=True)):
        say(f"judging window {at + 1} of {len(taken.rounds)}")
        used, left_out, _ = kept(window)
        discarded += left_out
        table = table_of(used, by_events)
        first, second = sequence.samples(by_events)
        for variant, effect in enumerate(EFFECTS, start=2):
            one = Window(effect, one_candidate(table, variant), first, second * (1.0 + effect))
            judged.append(judge(one, seed + at))
    return judged, discarded


def table_of(rounds: Sequence[Round], by_events: bool) -> RoundTable:
    """Return the samples of all variants, as `analyse` takes them."""
    return RoundTable(
        samples=np.array([[sample_ns(b, by_events) for b in r.blocks] for r in rounds]),
        positions=np.array([r.positions for r in rounds]),
    )


WARMUP_SHARE = 0.1
"""Share of the budget. All variants run one kernel, so that the first warms it for the others."""
_CANDIDATES = ("identical", *(f"{effect:.0%} slower" for effect in EFFECTS[1:]))


class Prepared(Struct, frozen=True):
    """The variants, warm: a function that takes a sample of each, and their measured lengths."""

    host: Host
    shots: tuple[Shot, ...]
    calibrate: Callable[[], None]
    """Sets the extra work of the slower candidates by what the product takes now."""
    block_ns: float
    by_events: bool
    product: Product


def selftest(device: torch.device, *, budget_s: float, seed: int, say: Say) -> SelfTest:
    """Measure for `budget_s`, then simulate. Raise KeyboardInterrupt only if no window was
    completed."""
    began = perf_counter_ns()
    prepared = prepare(device, budget_s, say)
    limit_ns = 1e9 * budget_s - (perf_counter_ns() - began)
    length = window_length(limit_ns, prepared.block_ns, len(prepared.shots))
    prepared.host.begin_rounds()
    taken = take(
        prepared.shots,
        length=length,
        limit_ns=limit_ns,
        now_ns=perf_counter_ns,
        seed=seed,
        between=prepared.calibrate,
        say=say,
    )
    surroundings = prepared.host.end_rounds()
    spent_s = (perf_counter_ns() - began) / 1e9
    stopped = taken.stopped
    judged, discarded = judge_all(taken, prepared.by_events, seed, say)
    artificial = None
    if stopped == "budget":
        try:
            artificial = simulated(seed, say)
        except KeyboardInterrupt:
            stopped = "interrupted"
    blocks = [r.blocks[0] for window in taken.rounds for r in window]
    alone = [sample_ns(block, prepared.by_events) for block in blocks]
    low, middle, high = np.quantile(alone, [0.25, 0.5, 0.75])
    return SelfTest(
        measured=count(judged, source="measured", noise="this machine", rounds=length),
        simulated=artificial,
        workload=str(prepared.product),
        sample_ns=median(block.reading.wall_ns for block in blocks),
        block_calls=tuple(block.calls for block in taken.rounds[0][0].blocks),
        spread=float((high - low) / middle),
        autocorrelation=_autocorrelation(taken.sequences, prepared.by_events),
        alpha=ALPHA,
        threshold=THRESHOLD,
        stopped=stopped,
        budget_s=budget_s,
        spent_s=spent_s,
        seed=seed,
        discarded=discarded,
        surroundings=surroundings,
    )


def prepare(device: torch.device, budget_s: float, say: Say) -> Prepared:
    """Build the variants and warm them up. The control is the baseline once more, as in
    `compare`."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    product, clock = Product(device), clock_for(str(device))
    spend = spender(device, clock)
    slowed = tuple(Slowed(product, effect, spend) for effect in EFFECTS[1:])
    calls: tuple[Callable[[], object], ...] = (product, product, *slowed)
    variants = (BASELINE, *_CANDIDATES)
    host = Host()

    def now_slower() -> None:
        calibrate(slowed, work_of(product, device, clock))

    warmed = []
    for variant, call in zip(variants, calls, strict=True):
        say(f"{variant}: warming up")
        host.adopt(variant, Workload(name=variant, function=call))
        warmed.append(host.warm_up(variant, WARMUP_SHARE * budget_s / len(variants)))
        if variant == BASELINE:
            now_slower()
    counts = even_calls([w.steady_ns for w in warmed])
    for variant, each in zip(variants, counts, strict=True):
        host.resize(variant, each)
    names = (BASELINE, BASELINE, *_CANDIDATES)
    return Prepared(
        host=host,
        shots=tuple(partial(host.block, variant) for variant in names),
        calibrate=now_slower,
        block_ns=sum(
            w.block_ns * each / w.block_calls for w, each in zip(warmed, counts, strict=True)
        )
        / len(warmed),
        by_events=events_agree([w.events_share for w in warmed]),
        product=product,
    )


def _autocorrelation(sequences: Sequence[InTurn], by_events: bool) -> float:
    """Return the lag-1 autocorrelation of the baseline's consecutive samples, over all windows."""
    return float(np.mean([lag1_correlation(s.samples(by_events)[0]) for s in sequences]))
