"""Whether files are ranks of one job at all: any trace can be put in a folder with any other."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ridgeline.records.trust import Check
from ridgeline.trace.analyses.busy import properties_of
from ridgeline.trace.ranks.wording import joined
from ridgeline.trace.trace import Trace


def strangers(traces: Sequence[Trace], shared: bool) -> tuple[Check, ...]:
    """What speaks against one job; `shared`: some collective is in two of them."""
    working = [trace for trace in traces if len(trace.device)] or list(traces)
    worlds = sorted({t.metadata.world_size for t in traces if t.metadata.world_size})
    numbers = Counter(t.metadata.rank for t in traces if t.metadata.rank is not None)
    again = [rank for rank, times in sorted(numbers.items()) if times > 1]
    names = Counter(name for trace in working for name in _device_names(trace) if name)
    # ranks of one size with numbers of their own may simply not have talked while recorded
    one = len(worlds) == 1 and sum(numbers.values()) == len(numbers) == len(traces) <= worlds[0]
    reasons = []
    if len(working) > 1 and not shared and not one:
        reasons.append("they share no collective")
    if len(names) > 1:
        reasons.append(f"their devices are {joined([f'{n} × {d}' for d, n in names.items()])}")
    if len(worlds) > 1:
        reasons.append(f"they tell of jobs of {joined([str(size) for size in worlds])} ranks")
    if again:
        which = joined([f"{numbers[rank]} are rank {rank}" for rank in again])
        reasons.append(f"of the files {which}")
    if not reasons or len(traces) < 2:
        return ()
    claim = f"these do not look like ranks of one job: {'; '.join(reasons)}"
    return (Check(id="not-one-job", severity="warning", claim=claim, count=1, affects=("ranks",)),)


def _device_names(trace: Trace) -> list[str]:
    found = [properties_of(trace, int(device)) for device in np.unique(trace.device.device)]
    return [one.name for one in found if one is not None]
