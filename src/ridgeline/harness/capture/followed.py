"""Optimizers that stepped, known by their ids, until they are gone.

A program that makes a new one for each fold or each trial may get the id of one that is gone. Taken
for it, it would seem to come back, and the steps between would be merged.
"""

import contextlib
import weakref
from typing import Any

from ridgeline.harness.capture.anchor import Anchor


class Followed:
    def __init__(self, anchor: Anchor) -> None:
        self._anchor = anchor
        self._alive: dict[int, Any] = {}

    def meet(self, optimizer: Any) -> None:
        who = id(optimizer)
        if who in self._alive:
            return

        def gone(_: Any) -> None:
            self._alive.pop(who, None)
            self._anchor.gone(who)

        with contextlib.suppress(TypeError):  # of a class without weak references
            self._alive[who] = weakref.ref(optimizer, gone)
