"""A call of the model more, of ours, that leaves no trace: on copies of what it was given, without
gradients, its buffers put back, and no random number drawn from the program's own."""

from typing import Any

from msgspec import Struct

from ridgeline.fixes.outputs import mapped
from ridgeline.harness.capture import live


class Rehearsed(Struct, frozen=True, kw_only=True):
    returned: Any
    draws: bool
    """Random numbers."""
    writes: bool
    """Its buffers: running statistics, a cache."""


def rehearsed(torch: Any, module: Any, args: Any, kwargs: Any) -> Rehearsed:
    """The plain call: what torch.compile made of it is for the program."""
    given = mapped(torch, (args, kwargs), lambda one: one.detach().clone())
    # By their values: batch norm's kernels write running statistics without a new version.
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
            gate.closed = True  # a call of ours is none of the program's
        with torch.random.fork_rng(devices=cuda), torch.no_grad():
            before = _states(torch)
            returned = module(*given[0], **given[1])
            draws = any(not torch.equal(*pair) for pair in zip(before, _states(torch), strict=True))
    finally:
        module._compiled_call_impl = compiled
        if gate is not None:
            gate.closed = closed
        written = [(one, was) for one, was in kept if not torch.equal(one, was)]
        with torch.no_grad():
            for one, was in written:
                one.copy_(was)
        if cuda and torch.cuda.max_memory_allocated() > peak:  # no peak of the program's
            torch.cuda.reset_peak_memory_stats()
    return Rehearsed(returned=returned, draws=draws, writes=bool(written))


def _states(torch: Any) -> list[Any]:
    cuda = torch.cuda.is_initialized()
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if cuda else [])]
