"""The result of an optimization: every fix with what became of it and why, and all that was kept,
measured again."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Ratio, Reason, Verdict
from ridgeline.records.parity import Alters, Parity
from ridgeline.records.trial import Applied

Goal = Literal["speed", "memory", "throughput", "energy"]
Status = Literal[
    "kept",
    "rejected",  # tried, and not faster, not equal, or it failed
    "dropped",  # kept once, and no longer of use beside the others
    "not applied",  # it found nothing to change
    "not tried",  # it cannot help here, or there was no time
]
Measured = Literal["step time", "time a sample", "peak memory", "energy a sample"]
"""What the goal makes smaller."""


class SearchCode(StrEnum):
    """Says why a fix was not tried, not kept or dropped, and why a search stopped."""

    # A contest came to a verdict; facts: value, ci_low, ci_high, pairs.
    FASTER = "contest.faster"
    SLOWER = "contest.slower"
    SAME = "contest.same"
    UNDECIDED = "contest.undecided"
    FASTER_IN_ONE_PROCESS = "contest.faster-in-one-process"  # pairs between processes were too few
    NOT_BESIDE_KEPT = "race.not-beside-kept"  # faster alone in the race, not beside what was kept
    # A contest ended without a verdict.
    RESULTS_DIFFER = "contest.results-differ"  # detail
    TOO_SLOW = "contest.too-slow"  # factor: saves memory, but lengthens the step beyond the limit
    BASELINE_FAILED = "contest.baseline-failed"  # cause: the other half of the pair failed
    TOO_FEW_STEPS = "contest.too-few-steps"
    NO_MEASURE = "contest.no-measure"  # measure
    NOTHING_TO_CHANGE = "contest.nothing-to-change"
    # A fix was not tried.
    OUT_OF_TIME = "skip.out-of-time"
    TOO_LITTLE_TIME = "skip.too-little-time"  # free_s, pair_s
    INTERRUPTED = "skip.interrupted"
    INTERRUPTED_AFTER = "skip.interrupted-after"  # value, pairs
    NEEDS_ALLOW = "skip.needs-allow"  # fix
    NEEDS_ALLOW_ARGUMENT = "skip.needs-allow-argument"  # fix
    NEEDS_BATCH = "skip.needs-batch"
    NEEDS_BATCH_ARGUMENT = "skip.needs-batch-argument"
    NOT_EXACT = "skip.not-exact"  # alters
    BOUND_TOO_SMALL = "skip.bound-too-small"  # bound
    BOUND_WITHIN_NOISE = "skip.bound-within-noise"  # bound
    KEPT_DOES_MORE = "skip.kept-does-more"  # title
    SAVES_MEMORY = "skip.saves-memory"  # goal
    # A fix was kept and dropped later.
    REPLACED = "drop.replaced"  # title
    REDUNDANT = "drop.redundant"  # cause: the contest with and without it
    NOT_REPEATED = "drop.not-repeated"  # value, ci_low, ci_high
    NOTHING_WITHOUT = "drop.nothing-without"  # title
    NOT_CONFIRMED = "drop.not-confirmed"  # value, ci_low, ci_high
    LARGER_BATCH_BETTER = "drop.larger-batch-better"
    # The search stopped.
    FITS = "stop.fits"  # peak_bytes, fit_bytes: what is kept is enough
    NO_BASELINE_TIME = "stop.no-baseline-time"  # the budget ended before the baseline was timed
    BASELINE_RUN_FAILED = "stop.baseline-run-failed"  # cause, run
    BASELINE_TOO_SHORT = "stop.baseline-too-short"  # ended, needed_steps
    PROOF_FAILED = "stop.proof-failed"  # cause
    # The program was not raced.
    RACE_FAULT = "race.fault"  # error: something of ours failed
    RACE_TOO_SHORT = "race.too-short"  # starts: the program ended before a set was timed
    # A set of fixes left the race.
    RACE_FAILS_ALIKE = "race.fails-alike"  # cause: so ended the process under the same fix
    RACE_CANNOT_GO_BACK = "race.cannot-go-back"  # cause: the baseline failed right after it
    # Something that the result rests on is doubtful.
    EARLIER_TRIALS_OUTDATED = "doubt.earlier-trials-outdated"  # then_s, now_s: a step, in seconds
    DATA_VARIES = "doubt.data-varies"  # the baseline reads other data each time it is run
    FIRST_LOSS_VARIES = "doubt.first-loss-varies"  # its first loss differs each time


class Earlier(Struct, frozen=True, kw_only=True):
    """Says how a fix did in another contest: alone, or with other fixes."""

    together: tuple[str, ...] = ()
    """Titles of the fixes it was tried with; empty if it was tried alone."""
    reason: Reason


class Rung(Struct, frozen=True, kw_only=True, rename={"fix": "change"}):
    """A fix, and what became of it."""

    fix: str
    title: str
    options: dict[str, str] = {}
    status: Status
    reason: Reason
    """Why it has this status."""
    verdict: Verdict | None = None
    """The verdict of the contest that decided the status; None if it was never measured. INVALID
    means that the results differ or that no trial with it could be measured."""
    alters: Alters = "nothing"
    beside: tuple[str, ...] = ()
    """Fixes that were applied already when it was measured."""
    together: tuple[str, ...] = ()
    """Fixes that were tried together with it."""
    earlier: Earlier | None = None
    """How it did when it was tried with other partners."""
    ratio: Ratio | None = None
    """Against what was kept when it was tried: the fixes beside it, and those that it replaced."""
    raced: Ratio | None = None
    """The ratio in the race, in one process, against what was kept there by then; None if it was
    not raced alone."""
    step_ms: float | None = None
    """A step with the fix and those beside it."""
    before_ms: float | None = None
    """A step with only those beside it, in the same pairs of processes."""
    without: Ratio | None = None
    """All that was kept, against all but this fix; None if it was not left out."""
    bound: float | None = None
    """The most that the fix could gain, together with those it was tried with and on top of
    those beside it, as estimated before the trial. None if there was no bound."""
    bound_exceeded: bool = False
    """Whether the fix gained more than the bound, so that the bound was wrong."""
    parity: Parity | None = None
    peak_bytes: int | None = None
    peak_before_bytes: int | None = None
    compile_s: float = 0.0
    pays_after: int | None = None
    """Steps after which compiling has paid; None if it pays at once, or never."""
    spent_s: float = 0.0


class Total(Struct, frozen=True, kw_only=True, rename={"fixes": "changes"}):
    """All that was kept, against the unchanged program in fresh processes."""

    ratio: Ratio
    """The ratio of what the goal measures."""
    between: Ratio | None = None
    """The ratio between fresh processes, where they lie too far apart to decide and `ratio` was
    measured in one fresh process that switched between both; else None."""
    confirmed: bool = True
    """Whether the fresh processes show that it is better."""
    fixes: tuple[str, ...] = ()
    before_ms: float
    after_ms: float
    before_samples_s: float | None = None
    after_samples_s: float | None = None
    parity: Parity
    peak_before_bytes: int = 0
    peak_bytes: int = 0
    compile_s: float = 0.0
    pays_after: int | None = None
    losses_before: tuple[float | None, ...] = ()
    """The loss of each of the first steps of a fresh process without the fixes; None where it was
    not seen or is not finite."""
    losses_after: tuple[float | None, ...] = ()
    """The same with the fixes, on the same data."""
    applied: tuple[Applied, ...] = ()
    """The fixes as they were applied in those processes, with the user's own lines."""

    @property
    def is_better(self) -> bool:
        return self.confirmed and self.ratio.ci_low > 1


class Written(Struct, frozen=True, kw_only=True):
    """Says what was kept, written into copies of the user's files."""

    files: tuple[str, ...] = ()
    """Copies: first of the script, then of modules that it imports."""
    diff: str = ""
    diff_file: str = ""
    by_hand: tuple[Reason, ...] = ()
    """What to write where, for edits that could not be made safely."""
    notes: tuple[Reason, ...] = ()
    """Names of copies that were taken already."""
    checked: str = ""
    """What the patched program did by itself, in a sentence."""
    agrees: bool | None = None
    """Whether the copy alone is as fast as the trial and computes the same; None if it was not
    run."""


class RaceMoment(Struct, frozen=True, kw_only=True):
    """Says how far a race had come."""

    at_s: float
    """Seconds since the race began."""
    measured: int
    """How many sets of fixes were timed by then."""
    best: float
    """How many times as fast as the baseline the kept set was; 1 before a set was kept."""


class RaceSummary(Struct, frozen=True, kw_only=True):
    """Says what the race measured, which fresh processes then prove."""

    measured: int = 0
    """How many sets of fixes were timed."""
    fixes: tuple[str, ...] = ()
    """The fixes that it proposed."""
    ratio: Ratio | None = None
    """The ratio of these fixes to the baseline, in one process."""
    control: Ratio | None = None
    """The baseline against itself."""
    starts: int = 0
    """How often the program was started."""
    course: tuple[RaceMoment, ...] = ()
    """The state after each heat, in order."""
    reason: Reason | None = None
    """Why the program was not raced, or not to the end; None if it was."""


class TimeSpent(Struct, frozen=True, kw_only=True):
    """Says what the time of a call went into, in seconds."""

    diagnosing_s: float = 0.0
    racing_s: float = 0.0
    proving_s: float = 0.0
    """Fresh processes: the baseline, the fixes, and the confirmation."""
    writing_s: float = 0.0
    """The copy, and the process that checks it."""


class Optimized(Struct, frozen=True, kw_only=True):
    schema: int = 1
    command: str
    form: Literal["program", "function"] = "program"
    """Whether a whole program was optimized, or a step function in the calling process."""
    goal: Goal = "speed"
    fit_bytes: int = 0
    """The peak that it was to come below; 0 for none."""
    measured: Measured = "step time"
    device: str = ""
    baseline_ms: float = 0.0
    """A step of the unchanged program: the median of its trials."""
    baseline_bytes: int = 0
    control: Ratio | None = None
    """The unchanged program against itself, in pairs: what is no difference."""
    race: RaceSummary | None = None
    """None if there was no race: a step function, for instance."""
    rungs: tuple[Rung, ...] = ()
    total: Total | None = None
    """None if nothing was kept, or if there was no time to confirm it."""
    with_batch: Total | None = None
    """All that was kept with a larger batch, by the time of a sample. It is not the same training,
    and never mixed with `total`."""
    advice: tuple[str, ...] = ()
    """What findings ask for that no fix can do: what to change, and at which line."""
    caveats: tuple[str, ...] = ()
    """What is true of the kept fixes and shows in no trial."""
    diagnosis: str = ""
    """What holds the unchanged program back, in a sentence."""
    afterwards: str = ""
    """What holds the patched copy back; "" if there was no copy, or no time to look."""
    run: str = ""
    """Name of the run in which the program was diagnosed."""
    replay: str = ""
    """The command that does all this again."""
    longer: str = ""
    """The command that continues from here with twice the time."""
    resume: str = ""
    """The command that continues from here with the same time."""
    queued_share: float = 0.0
    """Share of the baseline's steps in which they waited for a processor, if step times and ratios
    are without these waits; else 0."""
    noise: float = 0.0
    """How far processes of the same program lie apart, as a standard deviation."""
    trials: int = 0
    remembered: int = 0
    """Trials that were taken from an earlier call."""
    spent_s: float = 0.0
    time: TimeSpent | None = None
    """How `spent_s` was divided; None where no program was started."""
    stopped: Reason | None = None
    """Why the search ended before everything was tried; None if it did not."""
    written: Written | None = None
    problems: tuple[str, ...] = ()
    """What went wrong in our own work: in the diagnosis, in trials of the unchanged program, and in
    the trial of all that was kept. Each problem stands once."""

    @property
    def peak_bytes(self) -> int:
        """The peak of what was kept, or of the unchanged program if nothing was."""
        return self.total.peak_bytes if self.total is not None else self.baseline_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the peak that trials measured is within `fit_bytes`; None without a budget, or
        where nothing was measured."""
        known = self.fit_bytes and self.peak_bytes
        return self.peak_bytes <= self.fit_bytes if known else None

    @property
    def interrupted(self) -> bool:
        return self.stopped is not None and self.stopped.code == SearchCode.INTERRUPTED

    @property
    def is_function(self) -> bool:
        """Whether a step function was optimized in the calling process: no process is fresh there,
        and nothing is written."""
        return self.form == "function"

    @property
    def is_confirmed(self) -> bool:
        """Whether fresh processes were better with all that was kept, and computed the same."""
        total = self.total
        return total is not None and total.is_better and total.parity.is_proven
