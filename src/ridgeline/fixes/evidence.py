"""How far a changed model's outputs are from those of the model as it was, on the program's own
batches, in words with numbers."""

import math
from typing import Any

from ridgeline.fixes.outputs import tensors
from ridgeline.units import percent, plural


class Evidence:
    """`add` a batch, then read `words`."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.batches = 0
        self.rows = self.agree = 0
        """Rows of outputs with more than one column, and those whose largest is the same one."""
        self._error = self._size = 0.0

    def add(self, exact: Any, changed: Any) -> None:
        torch = self._torch
        self.batches += 1
        pairs = zip(tensors(torch, exact), tensors(torch, changed), strict=True)
        fit = [(one, other) for one, other in pairs if one.is_floating_point()]
        for one, other in fit:
            self._error += float(torch.linalg.vector_norm(other.double() - one.double())) ** 2
            self._size += float(torch.linalg.vector_norm(one.double())) ** 2
        rows = next(((a, b) for a, b in fit if a.dim() > 1 and a.size(-1) > 1), None)
        if rows is not None:
            same = rows[0].argmax(-1) == rows[1].argmax(-1)
            self.rows += same.numel()
            self.agree += int(same.sum())

    @property
    def error(self) -> float:
        """Of the outputs' norm; nan where one of them is not finite or there are none."""
        return math.sqrt(self._error / self._size) if self._size else math.nan

    def fault(self, kind: str, most: float) -> str:
        """Why it is not to be used: further off than `most`; "" where it is not."""
        if not math.isfinite(self.error):
            return f"outputs in {kind} are not finite, or there are none to compare"
        if self.error > most:
            return f"in {kind} its outputs are off by {percent(self.error)} of their norm"
        return ""

    @property
    def words(self) -> str:
        which = "the first batch" if self.batches == 1 else f"the first {self.batches} batches"
        found = f"outputs of {which} off by {percent(self.error)} of their norm"
        if self.rows:
            found += f", top-1 agrees on {self.agree:,} of {plural(self.rows, 'row')}"
        return found
