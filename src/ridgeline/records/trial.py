"""One trial: a fresh process of the user's program with fixes applied from outside, which is ended
after some steps. The process writes the record itself, small enough to be compared: a few numbers
for each step and each tensor."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Place, Reason

Draws = Literal[
    "own",  # as the program draws
    "eager",  # compiled code draws the random numbers that eager code would
    "none",  # that, and dropout drops nothing
]
"""What is drawn between a model's call and the backward. Trials that are compared may have to draw
other numbers than the program does."""


class TrialFailure(StrEnum):
    """Says why a trial left no usable record."""

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
    """A fix that is to be applied, with its options, such as workers=4."""

    fix: str
    options: dict[str, str] = {}


class FunctionEdit(Struct, frozen=True, kw_only=True):
    """A function of the user's that is to run from other source. `text` is the new text of the
    whole file, in which the function begins at `new_line`."""

    file: str
    line: int
    name: str
    text: str
    new_line: int


class Plan(Struct, frozen=True, kw_only=True, rename={"fixes": "changes"}):
    """Says what a trial is to do."""

    fixes: tuple[Asked, ...] = ()
    seed: int = 0
    steps: int = 40
    """The program is ended after so many steps."""
    least_s: float = 0.0
    """The timed steps must take at least this long: a counter of energy moves a few times a second,
    and steps may be ten times as fast as those they were planned by."""
    watch: int = 8
    """How many of the first steps are watched: their results are kept."""
    jitter: float = 0.0
    """Parameters are perturbed by this part of themselves before the first step, up or down, to see
    what rounding alone does to the program."""
    draws: Draws = "own"
    trains: bool = True
    """Whether the program trains. If not, fixes of the model are applied at its first call of any
    kind."""
    functions: tuple[FunctionEdit, ...] = ()


class FixTarget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a fix was applied to: a loader, an optimizer, a model, a call, a setting."""

    done: Reason
    """A code of `Done` with its facts: all that is needed to write the same into the source."""
    place: Place | None = None
    """The user's own line that makes or calls it; None if there is none."""


class Applied(Struct, frozen=True, kw_only=True, rename={"fix": "change"}):
    """A fix that was applied to at least one target."""

    fix: str
    targets: tuple[FixTarget, ...] = ()

    @property
    def lines(self) -> tuple[tuple[str, int], ...]:
        """The file and line of each target, each line once."""
        places = [one.place for one in self.targets if one.place is not None]
        found = [(one.file, one.line) for one in places if one.line is not None]
        return tuple(dict.fromkeys(found))


class NotApplied(Struct, frozen=True, kw_only=True, rename={"fix": "change"}):
    """A fix that found nothing to change. Its trial says nothing about what the fix would gain."""

    fix: str
    reason: Reason


class TensorPrint(Struct, frozen=True, kw_only=True):
    """A parameter or buffer, or a gradient, in a few numbers."""

    name: str
    norm: float
    projection: float
    """The tensor projected on a direction that is drawn from its name and size: equal tensors have
    equal projections."""
    moved: float
    """Norm of its difference from what it was before the first step."""
    numel: int
    buffer: bool = False
    dtype: str = ""
    """float32, int64; "" if it was not noted. A parameter kept in fewer bits is another program,
    whatever its norm."""
    sketch: tuple[float, ...] = ()
    """A sketch of how it moved: its elements with random signs, summed to two numbers for each
    twelfth. Two tensors moved as differently as their sketches, give or take a quarter; a single
    number would depend on luck."""


class OutputPrint(Struct, frozen=True, kw_only=True):
    """A tensor that an outermost module returned, in a few numbers."""

    numel: int
    norm: float
    """Norm of all elements that are finite."""
    sketch: tuple[float, ...] = ()
    """The sketch of a TensorPrint, of elements at equal distances, so that samples left out at the
    end of a batch show."""
    whole: bool = False
    """Whether they are integers, such as tokens or classes, which do not round."""
    odd: int = 0
    """How many elements are not finite, such as a mask of -inf."""
    rows: int = 0
    """Its first dimension, mostly the samples; 0 if it has none, or it was not noted."""
    rest: "OutputPrint | None" = None
    """The other elements beside a mask of finite numbers (-65504, -1e9), in whose norm they would
    not show; None if there is no such mask."""


class Predicted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Says what one call of a language model predicts, for each of its first rows."""

    given: tuple[int, ...]
    """The last token of each row that it was given."""
    tokens: tuple[tuple[int, ...], ...]
    """The tokens with the largest logits at the end of each row, the largest first."""
    logits: tuple[tuple[float, ...], ...]


class WatchedStep(Struct, frozen=True, kw_only=True):
    """Says what a step computed. None means not seen, which is not the same as zero."""

    loss: float | None = None
    """May be nan or inf."""
    gradient_norm: float | None = None
    """Over all parameters the step updated, before the update."""
    gradients: int = 0
    """Parameters that had a gradient."""
    applied: bool = True
    """Whether the update was applied, and not skipped by a gradient scaler."""
    samples: int | None = None
    """Samples that the loader handed out since the step before."""
    batch_sum: float | None = None
    """Sum over the first tensor of each batch, which is equal for equal data."""
    forwards: int = 0
    backwards: int = 0
    learning_rate: float | None = None
    outputs: tuple[OutputPrint, ...] = ()
    """What the model returned, in the order of its calls; for inference only."""
    predicted: tuple[Predicted, ...] = ()
    """What the calls of a language model predict, in their order; for inference only."""
    outputs_changed: float | None = None
    """How far those outputs have changed two steps later, as a part of their norm; inf if they
    cannot be read any more, None if the program does not keep them so long."""


class LaterStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step after the watched ones, with what was counted in passing."""

    number: int
    """Number of the step from 0, watched steps included."""
    loss: float | None = None
    """None if it was not seen, or is not finite."""
    broke: str = ""
    """nan, inf or -inf, if the loss is not finite."""
    forwards: int = 0
    backwards: int = 0
    updates: int = 0
    """Steps of optimizers that were applied."""
    handed: int | None = None
    """Elements of the tensors that outermost modules were given; None if they were not counted."""


class Queued(Struct, frozen=True, kw_only=True):
    """The queue of a loader with workers, when a step had taken its batch."""

    step: int
    epoch: int
    ready: int
    """Batches that lie ready."""


class Trial(Struct, frozen=True, kw_only=True, rename={"fixes": "changes"}):
    schema: int = 2
    fixes: tuple[str, ...] = ()
    applied: tuple[Applied, ...] = ()
    not_applied: tuple[NotApplied, ...] = ()
    step_ns: tuple[int, ...] = ()
    """The time from the end of one step to the end of the next, by the device's clock if there is
    one."""
    queued_ns: tuple[int, ...] = ()
    """Time of the steps in `step_ns` in which their thread waited for a processor. Empty if it is
    not known, or if workers feed the steps: then the steps may wait because of them."""
    samples: tuple[int | None, ...] = ()
    """Samples of the steps in `step_ns`; None if they were not seen."""
    queue: tuple[Queued, ...] = ()
    input_share: float | None = None
    """Share of those steps spent waiting for the loader; None if it was not seen."""
    system_share: float | None = None
    """Share of the processor time after the watched steps that the system used, in all threads."""
    energy_j: float | None = None
    """Mean energy of one of those steps; None if the machine does not report it."""
    watched: tuple[WatchedStep, ...] = ()
    """The first steps, which are watched and not timed, because watching takes time."""
    later: tuple[LaterStep, ...] = ()
    """The steps that follow."""
    looked: int | None = None
    """Index of the last step, which is not timed: the parameters were noted before it."""
    stood: tuple[str, ...] = ()
    """Parameters that the last step has left as they were."""
    handed: dict[int, int] = {}
    """For `later`, by the step's index, until the trial is read."""
    queued: dict[int, int] = {}
    """For `queued_ns`, likewise."""
    evaluation: tuple[float, ...] = ()
    """Norms and projections of the model's outputs on its first batch after the last watched step,
    in evaluation mode. They show what a loss does not, such as batch-norm statistics."""
    tensors: tuple[TensorPrint, ...] = ()
    """Prints after the last watched step."""
    early: tuple[TensorPrint, ...] = ()
    """Prints after the second step, before rounding has grown."""
    gradients: tuple[TensorPrint, ...] = ()
    """Gradients of the first update, by the names of their parameters; `moved` is their norm."""
    outputs: tuple[float, ...] = ()
    """The same as `evaluation`, before the first step."""
    float64_error: float | None = None
    """How far those outputs lie from what the same model returns in float64, as a part of their
    norm. None: there is no reference, and `no_reference` says why."""
    no_reference: str = ""
    """Why the model was not evaluated in float64; "" if it was, or was never called."""
    peak_bytes: int = 0
    """Peak of the device; on a host, of the program with the processes it starts."""
    own_peak_bytes: int = 0
    """Peak of the program's own process on the host; 0 if it was not noted."""
    others_bytes: int = 0
    """Memory of the processes it started, besides what they share with it, when its last step
    ended."""
    device: str = "cpu"
    compile_s: float = 0.0
    first_step_s: float = 0.0
    """The time from the start of the process to the end of its first step."""
    draws: bool = True
    """Whether random numbers were drawn between the model's call and the backward, by dropout or
    the like, or this was not seen."""
    undropped: int | None = None
    """Elements that dropout would have dropped on average in the watched steps, if it was made to
    drop none; None if this was not counted."""
    workers_draw: bool = False
    """Whether samples are made in worker processes by code that draws random numbers: then they
    cannot be expected to be equal."""
    jitter: float = 0.0
    """How far the parameters were perturbed; 1.2e-7 is one unit of float32's last place, 0 is not
    at all."""
    settings: tuple[str, ...] = ()
    """Settings of the optimizers that alter results, by parameter group: AdamW, 34 parameters,
    weight_decay=0.01 and so on, but not fused, foreach or capturable."""
    ended: str = ""
    """Why it took fewer steps than planned, such as that the program ended before; "" if it did
    not."""
    problems: tuple[str, ...] = ()
