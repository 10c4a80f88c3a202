"""What one run of a script left behind."""

from msgspec import Struct


class ScriptRecord(Struct, frozen=True, kw_only=True):
    """Written by the child at its end."""

    step_ns: tuple[float, ...] = ()
    """From one optimizer step's end to the next one's."""
    step_cpu_ns: tuple[float, ...] = ()
    step_thread_ns: tuple[float, ...] = ()
    """Processor time of the thread that makes the steps, in each step."""
    step_sleeps: tuple[int, ...] = ()
    """Voluntary context switches of that thread in each step; () if the system does not count them.
    """
    steps: int = 0
    losses: tuple[float, ...] = ()
    """Scalars handed to backward, in order."""
    parameter_norms: tuple[float, ...] = ()
    """At the end, of every parameter an optimizer stepped."""
    parameter_sizes: tuple[int, ...] = ()
    """How many numbers each has."""
    device_peak_bytes: int = 0
    clock: str = "wall"


class ScriptRun(Struct, frozen=True, kw_only=True):
    """One run, seen from outside as well."""

    record: ScriptRecord
    wall_ns: float
    cpu_ns: float
    peak_rss_bytes: int
