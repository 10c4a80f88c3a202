"""The lines under a run's figures: what others took of the machine, what pauses cost."""

from msgspec.structs import replace

from ridgeline.records.run_summary import RunSummary, Telemetered
from ridgeline.records.trust import Trust
from ridgeline.report.run_rows import Row, rows
from tests.unit.report import made_up_run as made

LEFT_OUT = "2 of 40 steps held a pause (a checkpoint, a stall) of up to 5 s: left out"


def row(summary: RunSummary, label: str) -> Row:
    return next(found for found in rows(summary) if found.label == label)


def test_other_programs_are_a_warning_from_a_quarter_of_the_cores_on() -> None:
    seen = Telemetered(program_cores=0.4, other_cores=1.6, cores=2)
    found = row(replace(made.summary(), telemetry=seen), "machine")
    assert found.text == "other programs took 1.6 of 2 cores · program 0.4 cores"
    assert found.tone == "warning"
    few = row(replace(made.summary(), telemetry=replace(seen, other_cores=0.5)), "machine")
    assert (few.text, few.tone) == ("program 0.4 cores", "plain")


def test_long_pauses_say_what_they_cost() -> None:
    whole = made.summary()
    step = replace(whole.step, pause_share=0.59, trust=Trust(why=LEFT_OUT))
    rate = replace(whole.throughput, samples_s_with_pauses=2_500.0)
    found = row(replace(whole, step=step, throughput=rate), "steps")
    assert found.text == f"{LEFT_OUT}; they take 59 % of the time, with them 2.5 k samples/s"
    one = replace(step, trust=Trust(why=LEFT_OUT.replace("2 of", "1 of")))
    found = row(replace(whole, step=one, throughput=rate), "steps")
    assert found.text.endswith("left out; it takes 59 % of the time, with it 2.5 k samples/s")
    short = row(replace(whole, step=replace(step, pause_share=0.05), throughput=rate), "steps")
    assert (short.text, short.tone) == (LEFT_OUT, "quiet")
