"""A plan that lets a training step fit a budget of memory: what to compute again, in how many
micro-batches, with which optimizer and precision; its peak and slowdown, predicted and measured."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

Change = Literal["nothing", "rounding", "results"]
"""The effect of a plan on the results of the training."""


class Unverified(StrEnum):
    """Why a plan was not run."""

    NO_ROOM = "no-room"
    """The machine has less memory free than the plan needs."""
    NO_DATA = "no-data"
    """The model is on meta, without weights."""
    NOT_ASKED = "not-asked"
    """--no-time: nothing runs."""
    NOT_HERE = "not-here"
    """The plan needs something that is not installed or that this device lacks."""
    LATER = "later"
    """Only the first plans are run."""
    FAILED = "failed"
    """It was run, and raised an error."""


class BlockMemory(Struct, frozen=True, kw_only=True):
    """The memory that one block keeps for backward, and the effect of checkpointing it alone."""

    path: str
    type: str
    kept_bytes: int
    """The tensors that only this block keeps, and its share of none that others keep too."""
    saved_bytes: int
    """How much less is kept if this block alone is checkpointed."""
    recompute_flops: int
    recompute_share: float
    """The share of a training step that computing it again takes."""


class MemoryPlan(Struct, frozen=True, kw_only=True):
    """One way to run the training step."""

    checkpointed: tuple[str, ...]
    """The paths of the blocks whose activations are computed again."""
    micro_batches: int
    micro_batch: int
    """The samples of the largest micro-batch."""
    optimizer: str
    fused: bool = False
    """Whether the optimizer steps in one kernel, without temporary lists."""
    autocast: str = ""
    """The dtype of autocast; "" for none."""
    offloaded: bool = False
    """Whether the state of the optimizer waits in the memory of the host."""
    changes: Change = "nothing"
    predicted_peak_bytes: int
    predicted_slowdown: float
    """The time of its step over the step as given."""
    measured_peak_bytes: int | None = None
    measured_ms: float | None = None
    measured_slowdown: float | None = None
    """Measured in alternation with the step as given, where that can run."""
    unverified: Unverified | None = None


class PlannedFit(Struct, frozen=True, kw_only=True):
    """The answer to `--train --fit`: whether the batch fits, the plans, and the blocks."""

    budget_bytes: int
    batch: int
    peak_bytes: int
    """The predicted peak of the step as given."""
    blocks: tuple[BlockMemory, ...]
    plans: tuple[MemoryPlan, ...]
    """Plans that keep the results come first; each group is sorted by predicted time. Empty if no
    plan is needed, or if none fits."""
    smallest_peak_bytes: int = 0
    """The smallest peak of all plans that were tried."""
    times_source: Literal["measured", "floors"] = "floors"
    """Whether slowdowns are predicted from times measured here or from the roofline."""
    timed_batch: int = 0
    """The samples of the step that was timed for the prediction."""
    baseline_ms: float | None = None
    counts: int = 0
    """How many passes were counted."""
    has_shared_tensors: bool = False
    """Whether blocks keep tensors of each other, so that the best set is a matter for milp."""
    lacks_solver: bool = False
    """Whether scipy was missing for that, and shared tensors were counted for every block."""
    has_statistics: bool = False
    """Whether the model keeps running statistics (batch norm), which see micro-batches."""
    has_loss: bool = False
    """Whether the model computes a cross-entropy itself, whose logits a chunked loss would save."""

    @property
    def fits(self) -> bool:
        """Whether the step fits as given."""
        return self.peak_bytes <= self.budget_bytes
