"""A rehearsal: an extra call of the model that leaves no trace in the program, and how far the
outputs of a changed model are from those it had before."""

import math
from typing import Any

from msgspec import Struct

from ridgeline.fixes.model_forward import map_tensors, tensors_in
from ridgeline.harness.capture import live
from ridgeline.records.facts import Fact, Reason, because
from ridgeline.records.reason_codes import Done, Skip


class Rehearsed(Struct, frozen=True, kw_only=True):
    returned: Any
    draws: bool
    """Whether the call drew random numbers."""
    writes: bool
    """Whether the call wrote buffers: running statistics, a cache."""


def rehearse(torch: Any, module: Any, args: Any, kwargs: Any) -> Rehearsed:
    """Call the module, not what torch.compile made of it, on copies of its arguments and without
    gradients. Its buffers are put back, and the program's random numbers are not touched."""
    given = map_tensors(torch, (args, kwargs), lambda one: one.detach().clone())
    # Compare values: batch norm's kernels write running statistics without a new version.
    # Inference tensors cannot be written outside inference mode.
    kept = [(one, one.clone()) for one in module.buffers() if not one.is_inference()]
    gate = getattr(live.session, "gate", None)
    closed = gate.closed if gate is not None else True
    compiled = getattr(module, "_compiled_call_impl", None)
    # Asking for a device would initialise CUDA in a program that stays on the CPU.
    cuda = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    try:
        module._compiled_call_impl = None
        if gate is not None:
            gate.closed = True  # this call is not one of the program's
        with torch.random.fork_rng(devices=cuda), torch.no_grad():
            before = _random_states(torch)
            returned = module(*given[0], **given[1])
            after = _random_states(torch)
            draws = any(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    finally:
        module._compiled_call_impl = compiled
        if gate is not None:
            gate.closed = closed
        written = [(one, was) for one, was in kept if not torch.equal(one, was)]
        with torch.no_grad():
            for one, was in written:
                one.copy_(was)
        if cuda and torch.cuda.max_memory_allocated() > peak:  # not a peak of the program's
            torch.cuda.reset_peak_memory_stats()
    return Rehearsed(returned=returned, draws=draws, writes=bool(written))


def _random_states(torch: Any) -> list[Any]:
    cuda = torch.cuda.is_initialized()
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if cuda else [])]


class Evidence:
    """Says how far the outputs of a changed model are from the exact ones, over some batches."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.batches = 0
        self.rows = self.same_rows = 0
        """Rows of outputs with more than one column, and those with the same largest column."""
        self._error = self._size = 0.0

    def add(self, exact: Any, changed: Any) -> None:
        torch = self._torch
        self.batches += 1
        pairs = zip(tensors_in(torch, exact), tensors_in(torch, changed), strict=True)
        compared = [(one, other) for one, other in pairs if one.is_floating_point()]
        for one, other in compared:
            self._error += float(torch.linalg.vector_norm(other.double() - one.double())) ** 2
            self._size += float(torch.linalg.vector_norm(one.double())) ** 2
        rows = next(((a, b) for a, b in compared if a.dim() > 1 and a.size(-1) > 1), None)
        if rows is not None:
            same = rows[0].argmax(-1) == rows[1].argmax(-1)
            self.rows += same.numel()
            self.same_rows += int(same.sum())

    @property
    def error_share(self) -> float:
        """The difference as a share of the outputs' norm; nan if one of them is not finite or there
        are none."""
        return math.sqrt(self._error / self._size) if self._size else math.nan

    def fault(self, dtype: str, max_error_share: float) -> Reason | None:
        """Return why the changed model must not be used; None if it may be."""
        if not math.isfinite(self.error_share):
            return because(Skip.OUTPUTS_NOT_FINITE, dtype=dtype)
        if self.error_share > max_error_share:
            return because(Skip.OUTPUTS_TOO_FAR_OFF, dtype=dtype, error_share=self.error_share)
        return None

    @property
    def result(self) -> Reason:
        facts: dict[str, Fact] = {"batches": self.batches, "error_share": self.error_share}
        if not self.rows:
            return Reason(Done.OUTPUTS_COMPARED.value, facts)
        facts |= {"rows": self.rows, "same_rows": self.same_rows}
        return Reason(Done.TOP_CLASS_COMPARED.value, facts)
