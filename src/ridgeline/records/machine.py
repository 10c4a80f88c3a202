"""A machine, its devices, and the ceilings of each device with their sources."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Reason

Source = Literal["measured", "datasheet"]
Quantity = Literal["matmul", "copy", "triad", "launch"]
CeilingState = Literal["usable", "disturbed", "exceeded"]

MAX_SHARE_OF_CEILING = 1.05
"""The largest share of a ceiling that measuring tolerance explains: a time and a ceiling are each
good to a few per cent. A larger share says that the ceiling is wrong, and is not printed."""


class Ceiling(Struct, frozen=True, kw_only=True):
    """The most that a device can do: FLOP/s for matmul, bytes/s for copy and triad, and for launch
    the seconds that one small operation costs."""

    quantity: Quantity
    value: float
    unit: Literal["FLOP/s", "B/s", "s"]
    source: Source
    dtype: str = ""
    """The arithmetic: float64, float32, tf32, bfloat16, float16, float8, int8; "" for bandwidth."""
    native: bool = True
    """False where the device emulates the dtype (bfloat16 on an AVX2 CPU, say)."""
    disturbed: bool = False
    """Whether other programs used the device while this was measured, so that it may be too low."""
    exceeded: bool = False
    """Whether a program has since been faster, so that the ceiling is known to be too low."""
    note: str = ""

    @property
    def state(self) -> CeilingState:
        """Whether this ceiling may be used. A datasheet's ceiling is always usable, because it was
        not measured here."""
        if self.source == "datasheet":
            return "usable"
        return "exceeded" if self.exceeded else "disturbed" if self.disturbed else "usable"


class Device(Struct, frozen=True, kw_only=True):
    """A CPU or a GPU."""

    kind: Literal["cpu", "cuda"]
    index: int
    name: str
    memory_bytes: int
    driver: str = ""
    """GPU driver version; "" on a CPU."""
    architecture: str = ""
    """sm_90, gfx942, or the CPU's widest vector extension: avx2, avx512, amx, neon."""
    cores: int = 0
    """Multiprocessors of a GPU; cores this process may use on a CPU."""
    cache_bytes: int = 0
    """L2 of a GPU, last level of a CPU; 0 where unknown."""
    ceilings: tuple[Ceiling, ...] = ()

    def ceiling(self, quantity: Quantity, dtype: str = "") -> Ceiling | None:
        """Return the best usable ceiling of a kind: a measured one before the datasheet's. A
        ceiling that was disturbed when measured, or that a program has since exceeded, is not
        usable."""
        usable = [c for c in self._of(quantity, dtype) if c.state == "usable"]
        return min(usable, key=lambda c: c.source != "measured", default=None)

    def doubtful_ceiling(self, quantity: Quantity, dtype: str = "") -> Ceiling | None:
        """Return the measured ceiling of a kind that is not usable; None if a usable one exists."""
        if self.ceiling(quantity, dtype) is not None:
            return None
        return next(iter(self._of(quantity, dtype)), None)

    def _of(self, quantity: Quantity, dtype: str) -> list[Ceiling]:
        return [c for c in self.ceilings if c.quantity == quantity and c.dtype == dtype]


class Disturbance(StrEnum):
    """What may disturb a measurement: other programs, lowered clocks, too few cores."""

    OTHER_PROCESSES = "disturbance.other-processes"  # used_cores, cores
    LOAD = "disturbance.load"  # load, processors: average of one minute
    STEAL = "disturbance.steal"  # share: of the processor time, taken by the hypervisor
    TOO_MANY_THREADS = "disturbance.too-many-threads"  # threads, free_cores, better_threads
    POWERSAVE = "disturbance.powersave"
    CPU_CLOCK_CAPPED = "disturbance.cpu-clock-capped"  # limit_ghz, max_ghz
    CORE_QUOTA = "disturbance.core-quota"  # quota_cores, cores
    FEW_THREADS = "disturbance.few-threads"  # threads, cores
    # Clocks of a GPU that were held down: looks, all_looks, sm_mhz, sm_max_mhz, temperature_c;
    # POWER_CAP has power_w and power_limit_w instead of the temperature.
    HOT = "disturbance.hot"
    POWER_CAP = "disturbance.power-cap"
    POWER_BRAKE = "disturbance.power-brake"
    SYNC_BOOST = "disturbance.sync-boost"
    SLOWDOWN = "disturbance.slowdown"
    # Other programs on a GPU.
    GPU_SHARED = "disturbance.gpu-shared"  # processes (0: none is listed), held_bytes
    GPU_BUSY = "disturbance.gpu-busy"  # share: of the time before this program used it
    GPU_UNSEEN = "disturbance.gpu-unseen"  # nothing reports clocks and other programs
    NO_ROOM = "disturbance.no-room"  # dtype: its ceiling was not measured
    ON_DEVICE = "disturbance.on-device"  # device; cause: what disturbs it


class Machine(Struct, frozen=True, kw_only=True):
    """The machine that a result was measured on."""

    system: str
    python: str
    torch: str
    devices: tuple[Device, ...]
    conditions: tuple[Reason, ...] = ()
    """What disturbed the measurement: throttling, other processes, a busy host."""
