"""What is asked of a study."""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from ridgeline.cost.study.inputs import Dimension, InputSpec

Say = Callable[[str], None]
"""Hears what is being done."""


class Options(Struct, frozen=True, kw_only=True):
    """What is asked of a study."""

    inputs: tuple[InputSpec, ...] = ()
    training: bool = False
    optimizer: str = "adamw"
    device: str | None = None
    dtype: Literal["", "float64", "float32", "bfloat16", "float16"] = ""
    meta: bool = False
    timed: bool = True
    budget_s: float = 2.0
    measure_memory: bool = False
    sweep: tuple[Dimension, tuple[int, ...]] | None = None
    fit_bytes: int = 0
    generate: int = 0

    @property
    def mode(self) -> Literal["inference", "training"]:
        return "training" if self.training else "inference"
