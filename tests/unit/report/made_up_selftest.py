"""A self-test without a machine."""

from typing import Any

import msgspec

from ridgeline.comparison.selftest import EFFECTS
from ridgeline.records.comparison import Surroundings
from ridgeline.records.facts import because
from ridgeline.records.machine import Disturbance
from ridgeline.records.selftest import Bench, Procedure, SelfTest, Source, Tally
from ridgeline.statistics.significance import wilson


def tally(procedure: Procedure, effect: float, windows: int, **said: int) -> Tally:
    counts = {"faster": 0, "slower": 0, "same": 0} | said
    called = counts["slower"] + (counts["faster"] if effect == 0 else 0)
    return Tally(
        procedure=procedure,
        effect=effect,
        windows=windows,
        undecided=windows - sum(counts.values()),
        called=wilson(called, windows),
        seen=effect if procedure == "ridgeline" else None,
        **counts,
    )


def bench(source: Source = "measured", windows: int = 34, alarms: int = 1) -> Bench:
    tallies = [tally("ridgeline", 0.0, windows, slower=alarms, same=min(10, windows - alarms))]
    tallies += [
        tally("ridgeline", effect, windows, slower=min(20, windows)) for effect in EFFECTS[1:]
    ]
    tallies += [
        tally("sequential Welch", effect, windows, slower=min(14, windows)) for effect in EFFECTS
    ]
    noise = "this machine" if source == "measured" else "simulated: AR(1)"
    return Bench(source=source, noise=noise, rounds=30, tallies=tuple(tallies))


def selftest(**changed: Any) -> SelfTest:
    made = SelfTest(
        measured=bench(),
        simulated=bench("simulated", windows=100, alarms=4),
        workload="512 × 512 matrix product",
        sample_ns=11e6,
        block_calls=(3,) * 6,
        spread=0.14,
        autocorrelation=0.45,
        alpha=0.05,
        threshold=0.02,
        stopped="budget",
        budget_s=60.0,
        spent_s=58.0,
        seed=0,
        discarded=0,
        surroundings=Surroundings(
            device="EPYC",
            threads=2,
            cores=2,
            disturbances=(because(Disturbance.OTHER_PROCESSES, used_cores=1.4, cores=2),),
        ),
    )
    return msgspec.structs.replace(made, **changed)
