"""One trial: the user's own program in a process of its own, with changes put on from outside,
stopped after some steps. Written by that process; what it computed is kept small enough to compare
(numbers a step, two numbers a tensor)."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

Draws = Literal[
    "own",  # as the program draws
    "eager",  # compiled code draws the random numbers that eager code would
    "none",  # that, and dropout drops nothing
]
"""What is drawn between a model's call and the backward: not as the program does where it is to be
compared with another that would drop others."""


class TrialFailure(StrEnum):
    """Why a trial left no usable record."""

    TIMED_OUT = "trial.timed-out"  # limit_s, step (None if no step was recorded)
    KILLED = "trial.killed"  # signal
    RAISED = "trial.raised"  # error
    NO_STANDARD_INPUT = "trial.no-standard-input"  # error
    EXITED = "trial.exited"  # exit_code, last_line
    RECORD_DAMAGED = "trial.record-damaged"  # error
    NO_RECORD = "trial.no-record"
    NO_TORCH = "trial.no-torch"
    NO_SCRIPT = "trial.no-script"  # a step function has no script to run by itself
    OUT_OF_TIME = "trial.out-of-time"
    TIME_RESERVED = "trial.time-reserved"  # the rest of the budget is for the proof
    CUT_FOR_PROOF = "trial.cut-for-proof"  # cause: the trial hit the limit that the proof sets


class Asked(Struct, frozen=True, kw_only=True, rename={"fix": "change"}):
    """A change asked for, with its own settings: workers=4."""

    fix: str
    options: dict[str, str] = {}


class FunctionEdit(Struct, frozen=True, kw_only=True):
    """A function of the user's to be run from other source: its file, its first line, the whole
    file's new text, in which it begins at `new_line`."""

    file: str
    line: int
    name: str
    text: str
    new_line: int


class Plan(Struct, frozen=True, kw_only=True, rename={"fixes": "changes"}):
    """What is asked of a trial."""

    fixes: tuple[Asked, ...] = ()
    seed: int = 0
    steps: int = 40
    """Then the program is ended."""
    least_s: float = 0.0
    """It goes on until those after the watched ones have taken as long: a counter of energy moves
    a few times a second, and steps may be ten times as fast as those they were counted by."""
    watch: int = 8
    """Steps whose results are kept, the first ones."""
    jitter: float = 0.0
    """Parameters are moved by so much of themselves before the first step, up or down: what
    rounding alone does to this program."""
    draws: Draws = "own"
    trains: bool = True
    """False: inference; changes of the model are put on at its first call of any kind."""
    functions: tuple[FunctionEdit, ...] = ()


class Applied(Struct, frozen=True, kw_only=True, rename={"fix": "change"}):
    """A change that found something to change."""

    fix: str
    what: str
    """DataLoader at data.py:41: num_workers 0 → 4"""
    places: tuple[str, ...] = ()
    """file:line of the user's own calls it was put on, for the patch."""


class NotApplied(Struct, frozen=True, kw_only=True, rename={"fix": "change"}):
    """A change that found nothing to change: never the same as one that changed nothing."""

    fix: str
    why: str


class TensorPrint(Struct, frozen=True, kw_only=True):
    """A parameter or buffer, or a gradient, in a few numbers."""

    name: str
    norm: float
    projection: float
    """On a direction of length 1 drawn from its name and size: equal tensors have equal ones."""
    moved: float
    """Norm of its difference from where it was before the first step."""
    numel: int
    buffer: bool = False
    dtype: str = ""
    """float32, int64; "" where it was not noted. A parameter kept in fewer bits is another program,
    whatever its norm says."""
    sketch: tuple[float, ...] = ()
    """Of its way from where it was: elements with random signs summed, two sums for each twelfth.
    Two ways lie as far apart as their sketches, give or take a quarter: one number would be a draw
    of luck."""


class OutputPrint(Struct, frozen=True, kw_only=True):
    """A tensor that an outermost module returned, in a few numbers."""

    numel: int
    norm: float
    """Of all elements that are finite."""
    sketch: tuple[float, ...] = ()
    """As a TensorPrint's, of some of them in equal distances: two numbers for each twelfth, so that
    samples left out at the end of a batch show where they are missing."""
    whole: bool = False
    """Integers, tokens or classes: they do not round, they are the same or others."""
    odd: int = 0
    """Elements that are not finite: a mask of -inf."""
    rows: int = 0
    """Its first dimension, mostly the samples. 0: it has none, or it was not noted."""
    rest: "OutputPrint | None" = None
    """Beside a mask of finite numbers (-65504, -1e9) its other elements are nothing in a norm: they
    are printed by themselves. None: there is no such mask."""


class WatchedStep(Struct, frozen=True, kw_only=True):
    """What a step computed. None: not seen, which is not the same as zero."""

    loss: float | None = None
    """nan and inf are kept as they are."""
    gradient_norm: float | None = None
    """Over all parameters the step updated, before the update."""
    gradients: int = 0
    """Parameters that had a gradient."""
    applied: bool = True
    """False: a gradient scaler threw the update away."""
    samples: int | None = None
    """That the loader handed out since the step before."""
    batch_sum: float | None = None
    """Sum over the first tensor of each batch: the same data have the same."""
    forwards: int = 0
    backwards: int = 0
    learning_rate: float | None = None
    outputs: tuple[OutputPrint, ...] = ()
    """What the model returned, in the order of its calls; of inference alone."""
    outputs_changed: float | None = None
    """How far those outputs lie two steps later from what they were, as a part of their norm; inf
    where they cannot be read any more. None: the program does not keep them so long."""


class LaterStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One after the watched ones: what was counted in passing."""

    number: int
    """From 0, the watched ones included."""
    loss: float | None = None
    """None: not seen, or not finite."""
    broke: str = ""
    """What it is where it is not finite: nan, inf, -inf."""
    forwards: int = 0
    backwards: int = 0
    updates: int = 0
    """Steps of optimizers that were applied."""
    handed: int | None = None
    """Elements of the tensors that outermost modules were given; None: not counted."""


class Queued(Struct, frozen=True, kw_only=True):
    """Of a loader with workers, where a step had taken its batch."""

    step: int
    epoch: int
    ready: int
    """Batches that were made and not taken yet."""


class Trial(Struct, frozen=True, kw_only=True, rename={"fixes": "changes"}):
    schema: int = 1
    fixes: tuple[str, ...] = ()
    applied: tuple[Applied, ...] = ()
    not_applied: tuple[NotApplied, ...] = ()
    step_ns: tuple[int, ...] = ()
    """From the end of one step to the end of the next; by the device's clock where there is one."""
    samples: tuple[int | None, ...] = ()
    """Of the steps in `step_ns`; None: not seen."""
    queue: tuple[Queued, ...] = ()
    input_share: float | None = None
    """Of those steps' time, waiting for the loader; None: not seen."""
    system_share: float | None = None
    """Of the steps after the watched ones: what the system did for the program; of all threads."""
    energy_j: float | None = None
    """Of one of those steps, on average; None: the machine does not tell."""
    watched: tuple[WatchedStep, ...] = ()
    """The first steps only: watching takes time, and those steps are not timed."""
    later: tuple[LaterStep, ...] = ()
    """Those that follow."""
    looked: int | None = None
    """The index of the last step, which is not timed: where parameters were was noted before it."""
    stood: tuple[str, ...] = ()
    """Parameters that it has left where they were."""
    handed: dict[int, int] = {}
    """Of `later`, by the step's index; they are put together when the trial is read."""
    evaluation: tuple[float, ...] = ()
    """The model's outputs on its first batch after the last watched step, in evaluation mode:
    their norms and projections. It sees what a loss cannot: batch-norm statistics."""
    tensors: tuple[TensorPrint, ...] = ()
    """After the last watched step."""
    early: tuple[TensorPrint, ...] = ()
    """After the second: before rounding has grown, in a program that lets it grow."""
    gradients: tuple[TensorPrint, ...] = ()
    """Of the first update, by their parameters' names: `moved` is their norm."""
    outputs: tuple[float, ...] = ()
    """Of the model in evaluation mode on its first batch, before the first step, as `evaluation`
    is after the last."""
    float64_error: float | None = None
    """How far those outputs lie from what the same model returns in float64, as a part of their
    norm. None: there is no reference, and `no_reference` says why."""
    no_reference: str = ""
    """Why the model was not evaluated in float64; "" if it was, or was never called."""
    peak_bytes: int = 0
    """Of the device; on a host of the program with the processes it starts."""
    own_peak_bytes: int = 0
    """Of the program's own process on the host. 0: not noted."""
    others_bytes: int = 0
    """Of the processes it started, beside what they share with it, where its last step ended."""
    device: str = "cpu"
    compile_s: float = 0.0
    first_step_s: float = 0.0
    """From the start of the process to the end of its first step."""
    draws: bool = True
    """Random numbers were drawn between the model's call and the backward, by dropout or the like;
    or it was not seen whether."""
    undropped: int | None = None
    """Elements that dropout was asked to drop in the watched steps, where it drops none, as many as
    it would on average; None: not counted."""
    workers_draw: bool = False
    """Samples are made in worker processes by code that draws random numbers: their equality
    cannot be asked for."""
    jitter: float = 0.0
    """The inputs were moved by so much of themselves (1.2e-7: one ulp of float32), to see what
    rounding alone does to this program. 0: as they are."""
    settings: tuple[str, ...] = ()
    """What the optimizers were told that alters results, a parameter group each: AdamW, 34
    parameters, lr 0.001, weight_decay 0.01 … Not fused, foreach, capturable."""
    ended: str = ""
    """"" where it took the steps asked for, else why not: the program ended before, raised …"""
    problems: tuple[str, ...] = ()
