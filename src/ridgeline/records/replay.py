"""A traced window as one host and its device went through it, to ask what would be without a wait.

Columns of equal length, an event a row, in the order the host came to them.
"""

from msgspec import Struct


class Replay(Struct, frozen=True, kw_only=True):
    steps: int
    before_ns: tuple[int, ...] = ()
    """Of the host's own time since the event before: outside what asks for a wait."""
    asking_ns: tuple[int, ...] = ()
    """Likewise inside it (the operator, the printing): gone where the asking is."""
    site: tuple[int, ...] = ()
    """The row in `Sites.waits` of what asks for it; -1: nothing does; -2: a wait that stays."""
    dur_ns: tuple[int, ...] = ()
    """A launch: of the device work. -1: a wait of the host."""
    stream: tuple[int, ...] = ()
    """Of a launch, counted from 0."""
    stays: tuple[bool, ...] = ()
    """Of the sites: the operator is there without the wait too (a copy to the device)."""
