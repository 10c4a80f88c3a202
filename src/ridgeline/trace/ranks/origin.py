"""What an operator is called when a person is told of it: its name, the phase it belongs to
(backward, optimizer, input) and the module whose work it is, where the trace knows."""

import re
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.columns import Codes
from ridgeline.trace.links import Links, Rows, enclosing, nested
from ridgeline.trace.trace import Trace

_WRAPPERS = re.compile(r"^(autograd::engine::evaluate_function: )?(torch::autograd::)?")
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$|AccumulateGrad$")
_MODULE = "nn.Module: "
_PHASES = ("", "backward", "input", "optimizer")
_SPANS = (("enumerate(DataLoader", "input"), ("Optimizer.step", "optimizer"))
LONGEST = 80
"""Characters of a name that are told: kernels of templates have thousands."""


class Labels(NamedTuple):
    """A text for each row: `texts[code[i]]`."""

    code: NDArray[np.int64]
    texts: list[str]


class Origins:
    def __init__(self, trace: Trace, links: Links) -> None:
        self._trace = trace
        self._links = links

    def labels(self, rows: Rows, instead: Codes) -> Labels:
        """`aten::index_put_ in backward of Embedding_0` for each row of `Trace.ops`; the text of
        `instead` where the row is -1."""
        known = rows >= 0
        name = np.where(known, -1, instead).astype(np.int64)
        phase, module = np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int64)
        if known.any():
            own = rows[known]
            root = self._climb(own)
            name[known] = self._trace.ops.name[own]
            phase[known] = self._phase(own, root)
            module[known] = self._module(own, root, phase[known])
        distinct, code = np.unique(
            np.column_stack((name, phase, module)), axis=0, return_inverse=True
        )
        return Labels(code.reshape(-1), [self._text(*map(int, line)) for line in distinct])

    def _text(self, name: int, phase: int, module: int) -> str:
        text = _WRAPPERS.sub("", self._trace.text(name))[:LONGEST]
        when = f" in {_PHASES[phase]}" if phase else ""
        whose = self._trace.text(module).removeprefix(_MODULE)
        return text + when + (f" of {whose}" if whose else "")

    def _climb(self, rows: Rows) -> Rows:
        """The outermost operator around each."""
        above = self._links.op_parent
        while True:
            up = above[rows]
            if (up < 0).all():
                return rows
            rows = np.where(up >= 0, up, rows)

    def _phase(self, rows: Rows, root: Rows) -> NDArray[np.int64]:
        """Index into _PHASES."""
        ops, table = self._trace.ops, self._trace.annotations
        backward = self._trace.names_where(ops.name[root], lambda n: bool(_BACKWARD.search(n)))
        phases = np.where(backward, _PHASES.index("backward"), 0).astype(np.int64)
        inner = ops.take(rows)
        for prefix, phase in _SPANS:
            spans = table.take(self._trace.names_where(table.name, partial(_begins, prefix)))
            inside = enclosing(inner, spans, nested(spans)) >= 0
            phases[inside] = _PHASES.index(phase)
        return phases

    def _module(self, rows: Rows, root: Rows, phase: NDArray[np.int64]) -> NDArray[np.int64]:
        """Code of the module's name; of a backward operator: of the forward with its number."""
        if not self._named_modules.any():
            return np.full(len(rows), -1, np.int64)
        forward = self._forward(self._trace.ops.sequence[root])
        source = np.where(phase == _PHASES.index("backward"), forward, rows)
        frame = np.where(source >= 0, self._links.op_frame[np.maximum(source, 0)], -1)
        above = self._links.frame_parent
        while (off := (frame >= 0) & ~self._named_modules[np.maximum(frame, 0)]).any():
            frame = np.where(off, above[np.maximum(frame, 0)], frame)
        return np.where(frame >= 0, self._trace.frames.name[np.maximum(frame, 0)], -1)

    def _forward(self, sequence: NDArray[np.int64]) -> Rows:
        """The forward operator of each sequence number; the last that holds it: the innermost."""
        ops = self._trace.ops
        forward = np.flatnonzero((ops.sequence >= 0) & (ops.forward_thread <= 0))
        forward = forward[
            ~self._trace.names_where(ops.name[forward], lambda n: bool(_BACKWARD.search(n)))
        ]
        if not len(forward):
            return np.full(len(sequence), -1, np.int64)
        order = forward[np.argsort(ops.sequence[forward], kind="stable")]
        at = np.searchsorted(ops.sequence[order], sequence, side="right") - 1
        held = (at >= 0) & (sequence >= 0) & (ops.sequence[order[np.maximum(at, 0)]] == sequence)
        return np.where(held, order[np.maximum(at, 0)], -1)

    @cached_property
    def _named_modules(self) -> NDArray[np.bool_]:
        frames = self._trace.frames
        return self._trace.names_where(frames.name, lambda name: name.startswith(_MODULE))


def _begins(prefix: str, name: str) -> bool:
    return name.startswith(prefix)
