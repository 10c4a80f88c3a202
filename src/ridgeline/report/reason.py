"""Why a model is called what it is called, in one sentence with the numbers that decided it."""

from ridgeline.records.model import Placement
from ridgeline.units import plural, seconds

DOUBT = {
    "disturbed": "The ceilings were measured while the machine was busy: the class may be wrong",
    "exceeded": "The model is faster than the ceilings: they are too low, the class may be wrong",
}
WEAK_PERCENT = 25.0
"""Below this share of the measured time the ceilings say little about what limits it."""


def explained_percent(place: Placement) -> float | None:
    """The share of the measured time that the largest floor accounts for."""
    if not place.measured_ms:
        return None
    return 100 * max(place.roofline_ms, place.overhead_ms) / place.measured_ms


def reason(place: Placement) -> str:
    text = (
        f"operators limited by arithmetic need {seconds(place.compute_limited_ms / 1e3)}, those "
        f"limited by memory {seconds(place.memory_limited_ms / 1e3)}, issuing "
        f"{plural(place.operators, 'operator')} {seconds(place.overhead_ms / 1e3)}"
    )
    explained = explained_percent(place)
    if place.measured_ms is None or explained is None:
        return f"{text}; not timed"
    if place.host_limited:
        text += "; the host was still issuing when the device had finished"
    measured = seconds(place.measured_ms / 1e3)
    if place.ceiling_state != "usable":
        return f"{text}; {measured} measured. {DOUBT[place.ceiling_state]}"
    if explained > 110:
        return f"{text}; {measured} measured: less than through memory each time, caches helped"
    weak = ": something else takes the rest" if explained < WEAK_PERCENT else ""
    return f"{text}; {measured} measured, {explained:.0f} % explained{weak}"
