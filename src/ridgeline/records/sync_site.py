"""Places at which the host waits for the device, and what that costs: the device's idle time.

Everything is a step's: counts and times are divided by the steps of the window.
"""

from typing import Literal

from msgspec import Struct

from ridgeline.records.trace import Place


class SyncSite(Struct, frozen=True, kw_only=True):
    """Waits of one sort asked for from one place."""

    ops: tuple[str, ...] = ()
    """Operators around the wait, outermost first: aten::is_nonzero, aten::item …"""
    call: str = ""
    """cudaStreamSynchronize, cudaMemcpyAsync …"""
    place: Place | None = None
    """The user's function."""
    via: tuple[str, ...] = ()
    """Functions between the user's and the wait, outermost first: print,
    torch/_tensor_str.py:_str, item. Empty without Python stacks."""
    direction: Literal["", "to device", "to host"] = ""
    """Of the copy that is waited for; "": none is, or both."""
    times: float = 0.0
    """How often the place asks."""
    waits: float = 0.0
    """How often the host waits there: printing one tensor may wait forty times."""
    bytes: float = 0.0
    """Copied while waiting."""
    host_ns: float = 0.0
    """The host held: not the cost, for the device may be working meanwhile."""
    device_ns: float = 0.0
    """Device work asked for by what waits: a number copied, the kernels that print a tensor."""
    idle_ns: float = 0.0
    """The device idle afterwards, as far as the host would have been ahead without the wait."""
