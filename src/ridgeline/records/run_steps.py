"""The steps of a run, each with what the machine did meanwhile: for spreadsheets and TensorBoard.

They are read from the run's directory when a report is made, and are not stored a second time.
"""

from msgspec import Struct

from ridgeline.records.run import Step


class MachineReading(Struct, frozen=True, kw_only=True):
    """The mean of the telemetry within one step. A figure is None if it is not known."""

    program_cores: float | None = None
    """How many processors the program and its workers kept busy."""
    host_cpu_percent: float | None = None
    """Use of all processors by all processes."""
    resident_bytes: float | None = None
    """Memory of the program and its workers; pages that they share count in each."""
    available_bytes: float | None = None
    """Memory of the host that is still free for use."""
    gpu_percent: float | None = None
    """The mean over the GPUs that the program works on. Memory and power are their sums."""
    gpu_memory_bytes: float | None = None
    gpu_mhz: float | None = None
    gpu_power_w: float | None = None
    gpu_temperature_c: float | None = None
    """The highest of the GPUs."""


class RankSteps(Struct, frozen=True, kw_only=True):
    rank: int = 0
    steps: tuple[Step, ...] = ()
    """The recorded steps, in the order of their index."""
    readings: tuple[MachineReading | None, ...] = ()
    """One a step; None for a step in which no sample was taken. Samples come at most ten times a
    second, so that most steps of a fast loop have none."""


class RunSteps(Struct, frozen=True, kw_only=True):
    name: str
    began_s: float = 0.0
    """When the run began, in seconds since 1970; 0 if it is not known."""
    began_ns: int = 0
    """The same moment on the clock of the steps."""
    ranks: tuple[RankSteps, ...] = ()
