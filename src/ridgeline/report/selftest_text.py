"""A self-test in words: the answer in one line, what to do about it, and what it rests on."""

from ridgeline.records.selftest import LIMIT, Bench, Rate, SelfTest, Tally
from ridgeline.report.comparison_numbers import NOTHING, share, time
from ridgeline.units import plural, seconds

ENOUGH_WINDOWS = 20
"""Below, the interval of a rate of 5 % reaches beyond 25 %."""
HEADER = ("candidate", "windows", "called different", "SAME", "UNDECIDED", "looked",
          "sequential Welch")  # fmt: skip


def summary(test: SelfTest) -> str:
    """identical code was called different in 1 of 34 windows (2.9 % [0.5, 14.9]); sequential
    Welch: 41 %"""
    called = test.measured.identical.called
    welch = test.measured.tally("sequential Welch", 0.0).called.share
    return (
        f"identical code was called different in {called.count} of {plural(called.of, 'window')} "
        f"({rate(called)}); sequential Welch: {NOTHING if welch is None else share(welch)}"
    )


def about(test: SelfTest) -> str:
    """What was timed, in one line."""
    around = test.surroundings
    fewest, most = min(test.block_calls), max(test.block_calls)
    calls = f" of {plural(most, 'call')}" if fewest == most else f" of {fewest} to {most} calls"
    parts = [
        test.workload,
        f"samples of {time(test.sample_ns)}{calls}",
        around.device,
        plural(around.threads, "thread"),
        f"{seconds(test.spent_s)} in all",
    ]
    return " · ".join(part for part in parts if part)


def rate(found: Rate) -> str:
    """2.9 % [0.5, 14.9]"""
    if found.share is None:
        return NOTHING
    ends = (f"{100 * end:.1f}".removesuffix(".0") for end in (found.low, found.high))
    return f"{share(found.share)} [{', '.join(ends)}]"


def title(bench: Bench) -> str:
    """this machine, 34 windows of 30 rounds"""
    windows = {tally.windows for tally in bench.tallies}
    number = f"{plural(windows.pop(), 'window')} of" if len(windows) == 1 else "windows of"
    return f"{bench.noise}, {number} {plural(bench.rounds, 'round')}"


def rows(bench: Bench) -> list[tuple[str, ...]]:
    """A row a candidate. "called different" of a slower one is "called SLOWER"."""
    found: list[tuple[str, ...]] = []
    for tally in bench.tallies:
        if tally.procedure != "ridgeline":
            continue
        found.append(
            (
                candidate(tally.effect),
                f"{tally.windows}",
                rate(tally.called),
                _part(tally.same, tally),
                _part(tally.undecided, tally),
                NOTHING if tally.seen is None else _signed(tally.seen),
                rate(bench.tally("sequential Welch", tally.effect).called),
            )
        )
    return found


def candidate(effect: float) -> str:
    return "identical" if effect == 0.0 else f"{share(effect)} slower"


def advice(test: SelfTest) -> str:
    """What to do where identical code is called different too often; "" where it is not."""
    if test.passed:
        return ""
    if test.surroundings.threads > 1:
        way = "try fewer threads (OMP_NUM_THREADS=1), a quieter host, or a larger --threshold"
    else:
        way = "try a quieter host, or a larger --threshold"
    return f"that is above the {share(LIMIT)} allowed, and not by chance: {way} in `compare`"


def notes(test: SelfTest) -> list[str]:
    """What must be known to read the numbers."""
    measured = test.measured
    windows = measured.identical.windows
    said = [f"host: {sentence}" for sentence in test.surroundings.sentences]
    if windows < ENOUGH_WINDOWS:
        said.append(f"only {plural(windows, 'window')}: the rates are rough")
    if test.stopped == "interrupted":
        said.append("interrupted: what was measured until then")
    if measured.controls_differ:
        said.append(
            f"the A/A control itself differed in {plural(measured.controls_differ, 'window')}:"
            " nothing was decided there"
        )
    for bench in (measured, test.simulated):
        said += _wrong_way(bench) if bench is not None else []
    if test.discarded:
        said.append(f"{plural(test.discarded, 'round')} left out: the device was throttled")
    return said


def method(test: SelfTest) -> list[str]:
    """How it was made."""
    threshold = share(test.threshold)
    return [
        f"each window judged as `compare` does, at {share(1 - test.alpha)}, threshold {threshold}",
        "slower candidates do real extra work inside the call and are counted where called"
        f" SLOWER; “looked” is what their rounds show; of those {threshold} slower half can be"
        " found at best, that being the threshold",
        "sequential Welch: the baseline's samples, then the candidate's, as many, and a t test;"
        " slower ones by scaling the identical candidate's samples",
        f"noise here: samples spread over {share(test.spread)} (IQR / median), lag 1"
        f" {test.autocorrelation:.2f}; intervals of rates are Wilson's at 95 %",
    ]


def following(test: SelfTest) -> tuple[str, str]:
    """What to type next, and why."""
    windows = test.measured.identical.windows
    if windows < ENOUGH_WINDOWS:
        budget = 10 * max(round(test.spent_s * ENOUGH_WINDOWS / windows / 10), 1)
        return f"for {ENOUGH_WINDOWS} windows", f"ridgeline selftest --budget {budget}s"
    return "compare something", "ridgeline compare BASE.py:NAME HEAD.py:NAME"


def _wrong_way(bench: Bench) -> list[str]:
    """A verdict against the truth is worse than none: it is always said."""
    said = []
    for procedure in ("ridgeline", "sequential Welch"):
        slower = [t for t in bench.tallies if t.procedure == procedure and t.effect]
        wrong, windows = sum(t.faster for t in slower), sum(t.windows for t in slower)
        if wrong:
            said.append(
                f"{bench.source}: {procedure} called slower code FASTER in {wrong} of"
                f" {plural(windows, 'window')}"
            )
    return said


def _part(number: int, tally: Tally) -> str:
    return share(number / tally.windows) if tally.windows else NOTHING


def _signed(value: float) -> str:
    text = share(abs(value))
    return text if text.startswith("0 ") else f"{'+' if value > 0 else '-'}{text}"
