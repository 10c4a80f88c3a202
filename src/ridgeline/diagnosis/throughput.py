"""What a second brings: steps, samples, tokens, over all ranks."""

from collections.abc import Sequence

from ridgeline.diagnosis.step_times import rate_ms
from ridgeline.records.run import Step
from ridgeline.records.run_summary import StepTimes, Throughput


def throughput(
    times: StepTimes, steps: Sequence[Step], ranks: int = 1, pauses: int = 0
) -> Throughput:
    """`steps`: those the times are over; `pauses`: how many were left out of them. Ranks
    are taken to work on samples of their own, as in data parallelism."""
    ms = rate_ms(times)
    if not ms:
        return Throughput()
    close = [s for s in steps if s.detailed]
    samples, tokens = _known([s.samples for s in close]), _known([s.tokens for s in close])
    paused = None
    if samples and pauses and times.mean_ms and times.pause_share < 1:
        seconds = times.mean_ms * times.steps / 1e3 / (1 - times.pause_share)
        paused = samples * ranks * (times.steps + pauses) / seconds
    return Throughput(
        steps_s=1e3 / ms,
        samples_s=samples * ranks * 1e3 / ms if samples else None,
        tokens_s=tokens * ranks * 1e3 / ms if tokens else None,
        samples_s_with_pauses=paused,
        samples_per_step=samples * ranks if samples else None,
        tokens_per_step=tokens * ranks if tokens else None,
    )


def _known(amounts: Sequence[int]) -> float | None:
    """The mean where most steps tell it: a last, smaller batch counts for what it is."""
    told = [amount for amount in amounts if amount > 0]
    return sum(told) / len(told) if 2 * len(told) > len(amounts) else None
