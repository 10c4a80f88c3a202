"""One iteration of the user's program, as its own hooks saw it: a line of steps.jsonl.

Times are nanoseconds on CLOCK_MONOTONIC, which every process of the machine shares. Phases are
exclusive: what runs inside another phase (a backward inside `optimizer.step(closure)`) is counted
once, in the inner one; what is in no phase is `other`. They add up to `dur_ns`.
"""

from typing import Literal

from msgspec import Struct

Phase = Literal[
    "input",  # waiting for the DataLoader
    "transfer",  # from the batch in hand to the first forward: the copy to the device
    "forward",  # outermost module calls that train, loss modules included
    "backward",
    "optimizer",  # the step itself, zero_grad, gradient scaling
    "evaluation",  # outermost calls in eval mode or without gradients, between training steps
    "other",
]
StepWindow = Literal["settle", "light", "traced", "memory", "disturbed"]
"""Which window it fell in. Times come from "light" only; "disturbed" is the step after a pause of
ours (a trace being written), and any step that a pause fell into."""


class StepMemory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the allocators of the device and of the host count at the end of a step."""

    allocated_bytes: int = 0
    peak_bytes: int = 0
    """Highest since the program began, or since the program itself reset it."""
    reserved_bytes: int = 0
    retries: int = 0
    """Allocations that had to free cached blocks and try again, since the program began."""
    host_bytes: int = 0
    """Bytes that malloc has handed out to the program and not got back; 0 if it is not known."""


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    index: int
    start_ns: int
    dur_ns: int
    """On the host, from the end of the step before to the end of this one."""
    window: StepWindow = "light"
    host: dict[Phase, int] = {}
    device_ns: int | None = None
    """The same span on the device's own clock (events on the stream); None on a CPU, or where the
    events could not be read (a graph being captured)."""
    device: dict[Phase, int] = {}
    """The device's timeline by phase: under `input` is the time it had nothing left to do while the
    program waited for data, so these are exposed times."""
    loss: float | None = None
    """The scalar handed to backward; the last one if there are several backwards. A gradient
    scaler's factor and a division by the number of backwards are undone. None if it is not finite.
    """
    loss_broke: str = ""
    """What it is then: nan, inf, -inf."""
    samples: int = 0
    """Along the first dimension of the batch; 0 where unknown."""
    tokens: int = 0
    """Elements of an integer batch of two dimensions; 0 where it is not text."""
    forwards: int = 0
    backwards: int = 0
    optimizer_steps: int = 0
    skipped: bool = False
    """The gradient scaler found infinities and left the parameters alone."""
    compile_ns: int = 0
    """Time torch.compile spent compiling inside this step."""
    memory: StepMemory | None = None
    """Memory at the end of the step; None if it was not read. It is read only as often as reading
    costs at most 0.2 % of the program's time."""
    detailed: bool = True
    """False: only its length was taken, because taking more would cost too much of a step so short:
    phases, calls, samples and loss are those of its neighbours."""
    regions: dict[str, int] = {}
    """Time inside `ridgeline.region("name")`, by name."""
