"""Whether the parameters differ all in one direction: rounding, and a unit that it switches, push
each its own way; weight decay that was left out makes every one larger."""

from math import isfinite, sqrt
from statistics import median

from ridgeline.records.trial import Trial

SURE = 12.0
"""Standard errors of a median. 80 honest changes of a small program reached 6.6, left-out decay
197 and more."""
FEWEST = 4


def pulled(baseline: Trial, candidate: Trial) -> float:
    """By how much of their norms, in the median; 0 where they differ each its own way."""
    found = {tensor.name: tensor for tensor in candidate.tensors}
    shares = [
        (found[tensor.name].norm - tensor.norm) / tensor.norm
        for tensor in baseline.tensors
        if not tensor.buffer
        and tensor.name in found
        and tensor.norm > 0
        # What hardly moved at all has nothing to say; what began at zero has no decay.
        and tensor.moved < 0.5 * tensor.norm
        and isfinite(tensor.norm)
        and isfinite(found[tensor.name].norm)
    ]
    if len(shares) < FEWEST:
        return 0.0
    middle = median(shares)
    spread = 1.4826 * median(abs(share - middle) for share in shares)
    error = 1.2533 * spread / sqrt(len(shares))
    return abs(middle) if abs(middle) > SURE * error else 0.0
