"""What the parts of a step took that the program named itself."""

from collections import Counter
from collections.abc import Sequence

from ridgeline.records.run import Step
from ridgeline.records.run_summary import RegionTime

MOST_REGIONS = 8


def region_times(steps: Sequence[Step]) -> tuple[RegionTime, ...]:
    """Means over all `steps`, also those a region was not entered in: they add up to the step."""
    spent: Counter[str] = Counter()
    for step in steps:
        spent.update(step.regions)
    whole = sum(step.dur_ns for step in steps)
    return tuple(
        RegionTime(name=name, ms=ns / len(steps) / 1e6, share=ns / whole if whole else 0.0)
        for name, ns in sorted(spent.items(), key=lambda held: (-held[1], held[0]))[:MOST_REGIONS]
    )
