"""Whether a GPU held its clocks down while a sample was taken."""

import torch

from ridgeline.machine import identity, nvml

# A power cap is how a sustained load ordinarily runs on a large GPU, and holds for all arms of a
# round alike; heat and brakes come and go between two samples.
_CAUSES = (
    (nvml.HW_THERMAL | nvml.SW_THERMAL, "thermal throttling"),
    (nvml.HW_POWER_BRAKE, "external power brake"),
    (nvml.HW_SLOWDOWN, "hardware slowdown"),
)


class Throttle:
    """One look a sample."""

    def __init__(self, device: torch.device) -> None:
        self._session = nvml.session()
        self._library = self._session.__enter__()
        self._handle = nvml.find(self._library, identity.address(device)) if self._library else None

    def look(self) -> str:
        """The cause, or ""."""
        reading = nvml.reading(self._library, self._handle) if self._handle is not None else None
        if reading is None:
            return ""
        return next((cause for bits, cause in _CAUSES if reading.reasons & bits), "")
