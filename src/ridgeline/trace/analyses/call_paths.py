"""The way from a line of the user's to a call: the functions between, of libraries and built in."""

import re
from functools import cached_property

import numpy as np

from ridgeline.trace.columns import Events
from ridgeline.trace.links import Links, Rows, enclosing
from ridgeline.trace.places import is_not_torch, is_own
from ridgeline.trace.trace import Trace

MOST = 8
"""Functions kept: the outer ones tell who was asked, the innermost which method."""
_BUILT_IN = re.compile(r"^<built-in (?:method|function) (?P<name>\S+)")
_FRAME = re.compile(r"^(?P<file>.+?)\(\d+\): (?P<function>.*)$")
_OURS = re.compile(r"(^|[/\\])ridgeline[/\\]")


class CallPaths:
    def __init__(self, trace: Trace, links: Links) -> None:
        self._trace, self._links = trace, links
        self._named: dict[int, str] = {}

    def of(self, calls: Events) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
        """For each call the names of the functions between, outermost first, and their rows in
        `trace.frames`. Empty without Python stacks, or on a thread without Python."""
        if not len(self._trace.frames):
            return [((), ())] * len(calls)
        inner = enclosing(calls, self._trace.frames, self._links.frame_parent)
        return [self._up(int(row)) for row in inner]

    def _up(self, row: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        rows: list[int] = []
        while row >= 0 and not self._own[row]:
            rows.append(row)
            row = int(self._links.frame_parent[row])
        if row < 0:  # a thread of no function of the user's
            return (), ()
        told = [(self._name(at), at) for at in reversed(rows)]
        kept = [(name, at) for name, at in told if name]
        if len(kept) > MOST:
            kept = [*kept[: MOST - 1], kept[-1]]
        return tuple(name for name, _ in kept), tuple(at for _, at in kept)

    @cached_property
    def _own(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        frames = self._trace.frames
        own = self._trace.names_where(frames.name, is_own)
        return own if own.any() else self._trace.names_where(frames.name, is_not_torch)

    def _name(self, row: int) -> str:
        code = int(self._trace.frames.name[row])
        if code not in self._named:
            self._named[code] = short_name(self._trace.text(code))
        return self._named[code]


def short_name(frame: str) -> str:
    """<built-in method item of Tensor object at 0x7f> is item; torch/_tensor.py(9): __repr__ is
    torch/_tensor.py:__repr__; "" for what profiles here."""
    if (built_in := _BUILT_IN.match(frame)) is not None:
        return built_in["name"].rstrip(">")
    if _OURS.search(frame):
        return ""
    match = _FRAME.match(frame)
    return f"{match['file']}:{match['function']}" if match is not None else frame


def rows_above(links: Links, row: int) -> Rows:
    """An operator and those around it, outermost first."""
    found = []
    while row >= 0:
        found.append(row)
        row = int(links.op_parent[row])
    return np.array(found[::-1], np.int64)
