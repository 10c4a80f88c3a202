"""Other content in the same tensors, in place, so that a workload meets inputs it has not seen.

Rolling keeps every value that was there, so indices stay in range and variances positive; the
slight shrinking changes constant tensors too and keeps what lies between 0 and 1 there. Where a
workload needs its values in order (a matrix that must be positive definite), shrinking alone.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch

from ridgeline.equality.calls.outputs import Outputs

How = Literal["rolled", "scaled", "nudged"]
_SHRINK = 1 / 64
_TURN = 1 / 1024


def perturb(
    tensors: Sequence[torch.Tensor], how: How, turn: int = 0, ints: bool = False, rows: bool = False
) -> int:
    """Change the content of tensors of which `can_be_perturbed` was asked; another `turn` gives
    other content. Returns how many it changed. "nudged" moves each number by about its rounding
    error. `ints`: tables of integers (token ids) are rolled too; rows of them are not, which are
    more often offsets, and out of order would lead a kernel to read beyond its memory. `rows`:
    they are, on a CPU, where such a kernel raises."""
    done: set[int] = set()
    changed = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage._cdata in done or not _has_a_way(tensor, how, ints, rows):
            continue
        done.add(storage._cdata)
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        flat = empty.set_(storage, 0, (storage.nbytes() // tensor.itemsize,), (1,))
        with torch.no_grad():
            flat.copy_(_changed(flat, how, turn))
        changed += 1
    return changed


def can_be_perturbed(tensor: torch.Tensor, ints: bool) -> bool:
    """Whether other content may be put into it. A mask of infinities, rolled, leaves rows with
    nothing to attend to."""
    if not _has_a_way(tensor, "rolled", ints):
        return False
    if not tensor.is_floating_point() or tensor.itemsize == 1:
        return True
    # One infinite number makes the sum one; looking at each takes ten times as long.
    return bool(tensor.detach().sum(dtype=torch.float64).isfinite())


def _has_a_way(tensor: torch.Tensor, how: How, ints: bool, rows: bool = False) -> bool:
    if tensor.is_complex() or tensor.numel() == 0:
        return False
    if not tensor.is_floating_point():
        if rows and tensor.device.type == "cpu":
            return how == "rolled"
        table = tensor.dim() >= 2 and tensor.dtype is not torch.bool
        return ints and how == "rolled" and table
    return tensor.itemsize > 1 or how == "rolled"  # float8 knows no arithmetic


def _changed(flat: torch.Tensor, how: How, turn: int) -> torch.Tensor:
    if not flat.is_floating_point():
        return flat.roll(1 + turn)
    if flat.itemsize == 1:
        return flat.view(torch.uint8).roll(1 + turn).view(flat.dtype)
    if how == "nudged":
        return _nudged(flat)
    rolled = flat.roll(1 + turn) if how == "rolled" else flat
    return rolled * (1 - _SHRINK - turn * _TURN)


def _nudged(flat: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(flat.device).manual_seed(flat.numel())
    up = torch.randint(
        2, flat.shape, generator=generator, dtype=torch.int8, device=flat.device
    ).bool()
    if flat.dtype in (torch.float32, torch.float64):
        infinity = torch.tensor(torch.inf, dtype=flat.dtype, device=flat.device)
        return torch.where(up, flat.nextafter(infinity), flat.nextafter(-infinity))
    # Three quarters of an eps is past halfway to the next number on either side.
    step = 0.75 * torch.finfo(flat.dtype).eps
    return torch.where(up, flat * (1 + step), flat * (1 - step))


MOST_BYTES = 2**28
COPIES = 3
"""An allocator may hand out another block of the same size than the one freed last."""
PATTERN = 0xFF
"""NaN in every float dtype, -1 in every integer."""

Block = tuple[int, str]


def blocks_of(outputs: Iterable[Outputs]) -> tuple[Block, ...]:
    """Sizes and devices of the tensors in some outputs."""
    found: dict[Block, None] = {}
    for each in outputs:
        for leaf in each.leaves:
            if leaf.kind == "tensor" and leaf.values is not None and leaf.device in ("cpu", "cuda"):
                elements = 1
                for size in leaf.shape:
                    elements *= max(size, 0)
                found[elements * leaf.values.itemsize, leaf.device] = None
    return tuple(found)


def poison(blocks: Iterable[Block]) -> int:
    """Take memory of these sizes, spoil it and give it back. Returns how many were spoilt."""
    left = MOST_BYTES
    taken: list[torch.Tensor] = []
    for size, device in blocks:
        if device == "cuda" and not torch.cuda.is_initialized():
            continue
        for _ in range(COPIES):
            if 0 < size <= left:
                left -= size
                try:
                    block = torch.empty(size, dtype=torch.uint8, device=device)
                except RuntimeError:  # a device that is full
                    return len(taken)
                taken.append(block.fill_(PATTERN))
    return len(taken)


def unwritten(values: torch.Tensor) -> torch.Tensor:
    """Where elements are the pattern, bit for bit."""
    if values.is_complex():
        values = torch.view_as_real(values)
    rows = values.contiguous().reshape(-1, 1).view(torch.uint8)
    return (rows == PATTERN).all(dim=1)
