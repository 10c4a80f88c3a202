"""Whole trainings of two programs: whether they end the same, and how large a difference could have
been seen."""

from statistics import fmean
from typing import Any

import msgspec

from ridgeline import units
from ridgeline.records.parity import Arm, OutcomeCode, Training, TrainingOutcome
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Document,
    Figures,
    Item,
    Labelled,
    Paragraph,
    Report,
    Row,
    Section,
    Span,
    Table,
    Tone,
    item,
    prose,
    row,
)
from ridgeline.report.numbers import NOTHING, figure, signed
from ridgeline.report.reasons import explain

SCHEMA = "ridgeline.outcome/1"
MAX_ADVISED_SEEDS = 200
"""More seeds than this are no advice."""
_DIGITS = 5
"""The significant digits of a single training's value."""
_FIGURES = ("seed", "baseline", "candidate", "difference", "baseline_s", "candidate_s")
_TONES: dict[str, Tone] = {"EQUIVALENT": "good", "DIFFERENT": "bad", "UNDECIDED": "unsure"}


def outcome_report(outcome: TrainingOutcome) -> Report:
    return Report(
        document=lambda: document(outcome),
        data=lambda: data(outcome),
        figures=lambda: figures(outcome),
    )


def document(outcome: TrainingOutcome) -> Document:
    return Document(
        answer=(Span(headline(outcome), _TONES[outcome.verdict]),),
        about=(f"{outcome.candidate} against {outcome.baseline}", _seed_count(outcome)),
        facts=_costs(outcome),
        blocks=tuple(_blocks(outcome)),
        footer=SCHEMA,
    )


def section(outcome: TrainingOutcome) -> Section:
    """Return the outcome as a part of another result."""
    answer = Paragraph(headline(outcome), "plain" if outcome.verdict == "EQUIVALENT" else "warning")
    return Section(title="Whole trainings", blocks=(answer, *_blocks(outcome)))


def headline(outcome: TrainingOutcome) -> str:
    """Return "EQUIVALENT: the difference lies between -0.0041 and +0.0017, within ± 0.0087"."""
    return f"{outcome.verdict}: {explain(outcome.reason)}"


def training_line(training: Training, metric: str) -> str:
    """Return the progress line of a finished training: "baseline, seed 2: loss 0.0651, 12 s"."""
    if training.failure is not None:
        text = f"failed: {explain(training.failure)}"
    elif not metric and training.final_loss is not None:
        text = f"final loss {figure(training.final_loss, _DIGITS)}"
    else:
        text = f"{metric or 'loss'} {_value(training.printed)}"
    return f"{training.arm}, seed {training.seed}: {text}, {units.seconds(training.wall_s)}"


def _blocks(outcome: TrainingOutcome) -> list[Block]:
    blocks: list[Block] = [Paragraph(explain(doubt), "doubt") for doubt in outcome.doubts]
    if outcome.trainings:
        blocks.append(_table(outcome))
    return [*blocks, Labelled(tuple(_items(outcome)))]


def _table(outcome: TrainingOutcome) -> Table:
    name = f"final {_what(outcome)}" if outcome.source == "losses" else _what(outcome)
    columns = (
        Column("seed"),
        *(Column(f"{name} of the {arm}" if arm == "baseline" else arm) for arm in _ARMS),
        Column("difference"),
    )
    rows = [_row(outcome, seed) for seed in _all_seeds(outcome)]
    test = outcome.equivalence
    if test is not None:
        values = [_mean(outcome, arm) for arm in _ARMS]
        rows.append(row("mean", *map(_value, values), signed(test.difference), bold=True))
    return Table(columns=columns, rows=tuple(rows))


_ARMS: tuple[Arm, Arm] = ("baseline", "candidate")


def _row(outcome: TrainingOutcome, seed: int) -> Row:
    baseline, candidate, difference = _pair(outcome, seed)
    cells = (_cell(outcome, baseline), _cell(outcome, candidate))
    return row(f"{seed}", *cells, NOTHING if difference is None else signed(difference))


def _cell(outcome: TrainingOutcome, training: Training | None) -> Cell:
    if training is None:
        return Cell("not trained", tone="quiet")
    if training.failure is not None:
        return Cell("failed", tone="bad")
    return Cell(_value(outcome.value(training)))


def _items(outcome: TrainingOutcome) -> list[Item]:
    items = [item("compared", _compared(outcome))] if outcome.source else []
    if outcome.stopped is not None:
        items.append(item("stopped", explain(outcome.stopped), level="warning"))
    test = outcome.equivalence
    if test is not None:
        ends = f"{signed(test.ci_low)} to {signed(test.ci_high)}"
        items.append(
            item("interval", f"{100 * test.level:.0f} % of the mean difference: {ends}, paired")
        )
        items.append(item("margin", _margin(outcome)))
        items.append(item("power", _power(outcome)))
    if advice := _advice(outcome):
        items.append(item("next", prose(advice)))
    items.append(item("took", units.seconds(outcome.spent_s)))
    return items


def _compared(outcome: TrainingOutcome) -> str:
    if outcome.source == "losses":
        counts = [(one.averaged, one.losses) for one in outcome.trainings if one.losses]
        averaged, losses = counts[0]
        return (
            f"the final loss: the mean of the last {averaged:,} of "
            f"{units.plural(losses, 'loss', 'losses')} that backward was called on"
        )
    return f"the last number that is printed after {_what(outcome)!r}"


def _margin(outcome: TrainingOutcome) -> str:
    test = outcome.equivalence
    if test is None or test.margin is None:
        return "unknown: the baseline ends the same for every seed; --margin sets it"
    spread = figure(outcome.seed_spread or 0.0)
    if outcome.margin_source == "given":
        return f"± {figure(test.margin)}, as given; between seeds the baseline varies by {spread}"
    return (
        f"± {figure(test.margin)}: the standard deviation of the baseline between its seeds; "
        "--margin sets another"
    )


def _power(outcome: TrainingOutcome) -> str:
    test = outcome.equivalence
    assert test is not None
    seeds = units.plural(test.pairs, "seed")
    if test.detectable is None:
        return f"the difference is the same in all {seeds}, so its spread is not known"
    text = (
        f"with {seeds} a true difference of {figure(test.detectable, 2)} is seen in 80 % of cases"
    )
    if test.equivalence_power is not None:
        text += (
            "; programs without any difference would be found EQUIVALENT in "
            f"{_probability(test.equivalence_power)}"
        )
    return text


def _probability(value: float) -> str:
    if value >= 0.995:
        return "over 99 %"
    return "under 1 %" if value < 0.01 else f"{100 * value:.0f} %"


def _advice(outcome: TrainingOutcome) -> str:
    """Return what to try, between backticks where it is typed; "" if there is nothing."""
    code, facts = outcome.reason.code, outcome.reason.facts
    if code == OutcomeCode.SEED_FIXED:
        if outcome.seed_argument:
            return "the program takes the seed as an argument, and something else sets it again"
        if argument := facts["argument"]:
            return f"let each training have its own seed: add `{argument} {{seed}}` to the program"
        return (
            "let the program take its seed from its arguments, and add `--seed {seed}` to them, or "
            "from the environment: `int(os.environ['RIDGELINE_SEED'])`"
        )
    if code == OutcomeCode.SAME_VALUES:
        return "`--margin 0.01` says which difference does not matter"
    needed = facts.get("seeds_needed") if code == OutcomeCode.TOO_WIDE else None
    if isinstance(needed, int) and outcome.equivalence is not None:
        if outcome.equivalence.pairs < needed <= MAX_ADVISED_SEEDS:
            return (
                f"`--seeds {needed}` would find programs without any difference EQUIVALENT in 80 % "
                "of cases"
            )
        if needed > MAX_ADVISED_SEEDS:
            return "no number of seeds worth training would settle it: a larger `--margin` might"
    return ""


def _what(outcome: TrainingOutcome) -> str:
    return outcome.metric or "loss"


def _seed_count(outcome: TrainingOutcome) -> str:
    if len(outcome.seeds) == outcome.planned:
        return units.plural(outcome.planned, "seed")
    return f"{len(outcome.seeds)} of {units.plural(outcome.planned, 'seed')}"


def _costs(outcome: TrainingOutcome) -> tuple[str, ...]:
    """Return how long a training of each program takes."""
    made = []
    for arm in _ARMS:
        times = [one.wall_s for one in outcome.of(arm) if one.failure is None]
        if times:
            made.append(f"{arm} {units.seconds(fmean(times))} a training")
    return tuple(made)


def _all_seeds(outcome: TrainingOutcome) -> list[int]:
    return sorted({training.seed for training in outcome.trainings})


def _pair(
    outcome: TrainingOutcome, seed: int
) -> tuple[Training | None, Training | None, float | None]:
    """Return both trainings of a seed, and candidate minus baseline."""
    baseline, candidate = (
        next((one for one in outcome.of(arm) if one.seed == seed), None) for arm in _ARMS
    )
    before = outcome.value(baseline) if baseline is not None else None
    after = outcome.value(candidate) if candidate is not None else None
    return baseline, candidate, None if before is None or after is None else after - before


def _mean(outcome: TrainingOutcome, arm: Arm) -> float:
    values = [outcome.value(one) for one in outcome.of(arm) if one.seed in outcome.seeds]
    return fmean(value for value in values if value is not None)


def _value(value: float | None) -> str:
    if value is None:
        return NOTHING
    return figure(value, _DIGITS) if abs(value) < float("inf") else str(value)


def data(outcome: TrainingOutcome) -> dict[str, Any]:
    """Return the record with its reasons in words as well. Differences are candidate minus
    baseline."""
    whole: dict[str, Any] = msgspec.to_builtins(outcome)
    return {
        "schema": SCHEMA,
        "summary": headline(outcome),
        **whole,
        "why": explain(outcome.reason),
        "doubts": [explain(doubt) for doubt in outcome.doubts],
        "stopped": explain(outcome.stopped),
        "trainings": [
            {**written, "failure": explain(training.failure)}
            for written, training in zip(whole["trainings"], outcome.trainings, strict=True)
        ],
    }


def figures(outcome: TrainingOutcome) -> Figures:
    """Return one row for each seed."""
    rows = []
    for seed in _all_seeds(outcome):
        baseline, candidate, difference = _pair(outcome, seed)
        pair = (baseline, candidate)
        values = [outcome.value(one) if one is not None else None for one in pair]
        times = [one.wall_s if one is not None else None for one in pair]
        rows.append([seed, *values, difference, *times])
    return Figures(_FIGURES, rows)
