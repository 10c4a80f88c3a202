"""Puts other values into the same tensors, in place, so that a workload meets inputs it has not
seen.

Rolling keeps every value, so indices stay in range and variances positive. A slight shrinking then
changes constant tensors, too, and keeps values between 0 and 1 in that range. If a workload needs
its values in order (a positive definite matrix), they are only shrunk."""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch

from ridgeline.equality.calls.outputs import Outputs

How = Literal["rolled", "scaled", "nudged"]
_SHRINK_SHARE = 1 / 64
_SHRINK_SHARE_PER_TURN = 1 / 1024


def perturb(
    tensors: Sequence[torch.Tensor],
    how: How,
    turn: int = 0,
    roll_ints: bool = False,
    roll_rows: bool = False,
) -> int:
    """Change the values of tensors and return how many were changed. Another `turn` gives other
    values. "nudged" moves each number by about its rounding error. `roll_ints`: also roll tables of
    integers (token ids), but not single rows, which are often offsets: out of order they would make
    a kernel read beyond its memory. `roll_rows`: roll those too, on a CPU, where such a kernel
    raises."""
    done: set[int] = set()
    changed = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage._cdata in done or not _can_change(tensor, how, roll_ints, roll_rows):
            continue
        done.add(storage._cdata)
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        flat = empty.set_(storage, 0, (storage.nbytes() // tensor.itemsize,), (1,))
        with torch.no_grad():
            flat.copy_(_changed(flat, how, turn))
        changed += 1
    return changed


def can_be_perturbed(tensor: torch.Tensor, roll_ints: bool) -> bool:
    """Return whether the tensor can be given other values. A mask of infinities, rolled, would
    leave rows with nothing to attend to."""
    if not _can_change(tensor, "rolled", roll_ints):
        return False
    if not tensor.is_floating_point() or tensor.itemsize == 1:
        return True
    # One infinite number makes the sum infinite; testing each takes ten times as long.
    return bool(tensor.detach().sum(dtype=torch.float64).isfinite())


def _can_change(tensor: torch.Tensor, how: How, roll_ints: bool, roll_rows: bool = False) -> bool:
    if tensor.is_complex() or tensor.numel() == 0:
        return False
    if not tensor.is_floating_point():
        if roll_rows and tensor.device.type == "cpu":
            return how == "rolled"
        table = tensor.dim() >= 2 and tensor.dtype is not torch.bool
        return roll_ints and how == "rolled" and table
    return tensor.itemsize > 1 or how == "rolled"  # float8 has no arithmetic


def _changed(flat: torch.Tensor, how: How, turn: int) -> torch.Tensor:
    if not flat.is_floating_point():
        return flat.roll(1 + turn)
    if flat.itemsize == 1:
        return flat.view(torch.uint8).roll(1 + turn).view(flat.dtype)
    if how == "nudged":
        return _nudged(flat)
    rolled = flat.roll(1 + turn) if how == "rolled" else flat
    return rolled * (1 - _SHRINK_SHARE - turn * _SHRINK_SHARE_PER_TURN)


def _nudged(flat: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(flat.device).manual_seed(flat.numel())
    upward = torch.randint(
        2, flat.shape, generator=generator, dtype=torch.int8, device=flat.device
    ).bool()
    if flat.dtype in (torch.float32, torch.float64):
        infinity = torch.tensor(torch.inf, dtype=flat.dtype, device=flat.device)
        return torch.where(upward, flat.nextafter(infinity), flat.nextafter(-infinity))
    # Three quarters of an eps rounds to the next number on either side.
    step = 0.75 * torch.finfo(flat.dtype).eps
    return torch.where(upward, flat * (1 + step), flat * (1 - step))


MAX_POISONED_BYTES = 2**28
BLOCKS_PER_SIZE = 3
"""The allocator may hand out another block of the same size than the one freed last."""
POISON_BYTE = 0xFF
"""A tensor filled with it is NaN in every float dtype and -1 in every signed integer dtype."""

Block = tuple[int, str]


def blocks_of(outputs: Iterable[Outputs]) -> tuple[Block, ...]:
    """Return size in bytes and device of the tensors in some outputs."""
    blocks: dict[Block, None] = {}
    for each in outputs:
        for leaf in each.leaves:
            if leaf.kind == "tensor" and leaf.values is not None and leaf.device in ("cpu", "cuda"):
                elements = 1
                for size in leaf.shape:
                    elements *= max(size, 0)
                blocks[elements * leaf.values.itemsize, leaf.device] = None
    return tuple(blocks)


def poison(blocks: Iterable[Block]) -> int:
    """Allocate memory of these sizes, fill it with the pattern and free it. Return how many blocks
    were filled."""
    bytes_left = MAX_POISONED_BYTES
    taken: list[torch.Tensor] = []
    for size, device in blocks:
        if device == "cuda" and not torch.cuda.is_initialized():
            continue
        for _ in range(BLOCKS_PER_SIZE):
            if 0 < size <= bytes_left:
                bytes_left -= size
                try:
                    block = torch.empty(size, dtype=torch.uint8, device=device)
                except RuntimeError:  # a device that is full
                    return len(taken)
                taken.append(block.fill_(POISON_BYTE))
    return len(taken)


def unwritten(values: torch.Tensor) -> torch.Tensor:
    """Return which elements are the pattern, bit for bit."""
    if values.is_complex():
        values = torch.view_as_real(values)
    elements = values.contiguous().reshape(-1, 1).view(torch.uint8)
    return (elements == POISON_BYTE).all(dim=1)
