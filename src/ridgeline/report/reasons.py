"""The one place where reasons become English: a template for every code.

A template names the facts of its reason in braces and may format them with a unit:
`"{free_s:seconds} are left"`, `"{workers:plural worker}"`. `{cause}` is the reason behind the
reason. A test checks that every code has a template.
"""

import string
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ridgeline import units
from ridgeline.records.comparison import VerdictCode
from ridgeline.records.facts import Reason, Trust
from ridgeline.records.finding import Answer
from ridgeline.records.machine import Disturbance
from ridgeline.records.optimized import Earlier, SearchCode
from ridgeline.records.parity import OutcomeCode
from ridgeline.records.trace import TraceStudy
from ridgeline.records.trial import Applied, TrialFailure
from ridgeline.records.verdict import Deciding, Verdict
from ridgeline.report.fix_reasons import TEMPLATES as FIXES
from ridgeline.report.fix_reasons import UNITS as FIX_UNITS
from ridgeline.report.memory_reasons import TEMPLATES as MEMORY
from ridgeline.report.memory_reasons import UNITS as MEMORY_UNITS
from ridgeline.report.numbers import figure, signed
from ridgeline.report.run_reasons import NUMBERS, PARTS_OF_STEP, QUESTIONS
from ridgeline.report.run_reasons import TEMPLATES as RUN

_RATIO = "{value:ratio} [{ci_low:end}, {ci_high:end}]"
_TRIALS: dict[str, str] = {
    TrialFailure.TIMED_OUT: "it did not end within {limit_s:.0f} s{step:at_step}",
    TrialFailure.KILLED: "it was killed by {signal}",
    TrialFailure.RAISED: "{error}",
    TrialFailure.NO_STANDARD_INPUT: "{error}: a trial has no standard input",
    TrialFailure.EXITED: "it ended with exit code {exit_code}{last_line:after_colon}",
    TrialFailure.RECORD_DAMAGED: "its record is damaged: {error}",
    TrialFailure.NO_RECORD: "it left no record",
    TrialFailure.NO_TORCH: "the program did not import torch",
    TrialFailure.NO_SCRIPT: "a step function has no script of its own",
    TrialFailure.OUT_OF_TIME: "too little time was left",
    TrialFailure.TIME_RESERVED: "the rest of the time is reserved for the proof",
    TrialFailure.CUT_FOR_PROOF: "{cause}, and the rest of the time is reserved for the proof",
}
_RUN_AGAIN = (
    "; if it continues from files of an earlier run, let it start anew when RIDGELINE_TRIAL is set "
    "in its environment"
)
_SEARCH: dict[str, str] = {
    SearchCode.FASTER: _RATIO,
    SearchCode.SLOWER: f"worse: {_RATIO}",
    SearchCode.SAME: f"no difference that matters: {_RATIO}",
    SearchCode.UNDECIDED: f"not proven better: {_RATIO} after {{pairs:plural pair}}",
    SearchCode.FASTER_IN_ONE_PROCESS: f"faster in one process that switched between both: {_RATIO}",
    SearchCode.NOT_BESIDE_KEPT: f"faster by itself, no longer beside what was kept: {_RATIO}",
    SearchCode.RACE_FAULT: "the race failed: {error}",
    SearchCode.RACE_CANNOT_GO_BACK: "the program fails as soon as it is taken off: {cause}",
    SearchCode.RACE_FAILS_ALIKE: "with other options the program failed under it: {cause}",
    SearchCode.RACE_TOO_SHORT: (
        "the program ended before any fix was timed, {starts:plural start} in a row: give it more "
        "steps"
    ),
    SearchCode.RESULTS_DIFFER: "{detail}",
    SearchCode.TOO_SLOW: "a step takes {factor:.1f} × as long",
    SearchCode.BASELINE_FAILED: "the baseline failed: {cause}",
    SearchCode.TOO_FEW_STEPS: "it took too few steps to be timed",
    SearchCode.NO_MEASURE: "{measure:no_measure}",
    SearchCode.NOTHING_TO_CHANGE: "it found nothing to change",
    SearchCode.OUT_OF_TIME: "too little time was left",
    SearchCode.TOO_LITTLE_TIME: (
        "too little time was left for it: {free_s:seconds}, and a pair may take {pair_s:seconds}"
    ),
    SearchCode.INTERRUPTED: "interrupted",
    SearchCode.INTERRUPTED_AFTER: "interrupted: {value:ratio} after {pairs:plural pair}",
    SearchCode.NEEDS_ALLOW: "it alters what is computed; --allow {fix} tries it",
    SearchCode.NEEDS_ALLOW_ARGUMENT: 'it alters what is computed; allow="{fix}" tries it',
    SearchCode.NEEDS_BATCH: "another batch size trains differently; --batch tries it",
    SearchCode.NEEDS_BATCH_ARGUMENT: "another batch size trains differently; batch=True tries it",
    SearchCode.NOT_EXACT: "it alters {alters}",
    SearchCode.BOUND_TOO_SMALL: "at most {bound:ratio} to gain",
    SearchCode.BOUND_WITHIN_NOISE: (
        "at most {bound:ratio} to gain, which this machine's noise would hide"
    ),
    SearchCode.KEPT_DOES_MORE: "{title} is kept and does more",
    SearchCode.FITS: "the peak of {peak_bytes:bytes} is within {fit_bytes:bytes}",
    SearchCode.SAVES_MEMORY: "it saves memory but costs time, and the goal is {goal}",
    SearchCode.REPLACED: "{title} is better",
    SearchCode.REDUNDANT: "no gain beside the other kept fixes: {cause}",
    SearchCode.NOT_REPEATED: f"not confirmed: a second measurement gave {_RATIO}",
    SearchCode.NOTHING_WITHOUT: "it does nothing without {title}",
    SearchCode.NOT_CONFIRMED: f"not confirmed in fresh processes: {_RATIO}",
    SearchCode.LARGER_BATCH_BETTER: "a larger batch is better",
    SearchCode.NO_BASELINE_TIME: "the budget ended before the baseline could be timed",
    SearchCode.BASELINE_RUN_FAILED: "the baseline failed: {cause}{run:later_run}",
    SearchCode.BASELINE_TOO_SHORT: (
        "{ended:or_too_short}: {needed_steps} are needed to compare and time it"
    ),
    SearchCode.PROOF_FAILED: "it could not be confirmed: {cause}",
    SearchCode.EARLIER_TRIALS_OUTDATED: (
        "earlier trials were not reused: a step took {then_s:seconds} then, and takes "
        "{now_s:seconds} now"
    ),
    SearchCode.DATA_VARIES: "the baseline reads other data each time it runs: set its "
    f"seeds{_RUN_AGAIN}",
    SearchCode.FIRST_LOSS_VARIES: (
        f"the first loss of the baseline differs each time it runs: set its seeds{_RUN_AGAIN}"
    ),
}
_WITHOUT_FIGURES: dict[str, str] = {
    SearchCode.FASTER: "",
    SearchCode.SLOWER: "worse",
    SearchCode.SAME: "no difference that matters",
    SearchCode.UNDECIDED: "not proven better after {pairs:plural pair}",
    SearchCode.FASTER_IN_ONE_PROCESS: "faster in one process that switched between both",
    SearchCode.NOT_BESIDE_KEPT: "faster by itself, no longer beside what was kept",
}
"""Templates for tables that show the ratio in a column of its own."""
_NO_MEASURE = {
    "step time": "the program takes too few steps to be timed",
    "time a sample": "the number of samples in a step is not known",
    "peak memory": "the peak memory of the program was not measured",
    "energy a sample": (
        "the energy was not measured: the machine does not report it, or the steps ended too soon"
    ),
}

_TIMES_AS_FAST = "{ratio:fine_ratio} × as fast ({ci_low:fine_ratio} to {ci_high:fine_ratio})"
_CROWDED = "other programs had the processors {taken_share:difference} of the time"
_VERDICTS: dict[str, str] = {
    VerdictCode.TOO_FEW_ROUNDS: "only {rounds:plural round}; {needed} are needed",
    VerdictCode.CONTROL_DIFFERS: (
        "identical code measured {difference:difference} apart, so no verdict can be trusted"
    ),
    VerdictCode.BEYOND_THRESHOLD: (
        f"{_TIMES_AS_FAST}, more than the {{threshold:difference}} that matters"
    ),
    VerdictCode.BEYOND_CONTROL: (
        f"{_TIMES_AS_FAST}, more than the {{floor:difference}} between identical code"
    ),
    VerdictCode.WITHIN_THRESHOLD: (
        "any difference is below the {threshold:difference} that matters: {ci_low:fine_ratio} to "
        "{ci_high:fine_ratio} ×"
    ),
    VerdictCode.REACHES_ONE: (
        "the interval reaches from {ci_low:fine_ratio} to {ci_high:fine_ratio}"
        "{rounds_factor:more_rounds}"
    ),
    VerdictCode.MAY_MATTER: (
        "a difference of {difference:difference} was found, less than the {threshold:difference} "
        "that matters, but up to {possible:difference} cannot be ruled out"
        "{rounds_factor:more_rounds}"
    ),
    VerdictCode.WITHIN_CONTROL: (
        "a difference of {difference:difference} was found, but identical code measured "
        "{floor:difference} apart in the same rounds{rounds_factor:more_rounds}"
    ),
    VerdictCode.BY_PROCESSOR_TIME: f"by processor time, because {_CROWDED}: {{cause}}",
    VerdictCode.MEASURES_DISAGREE: (
        f"{{verdict}} by wall time, but {{ratio:.3g}} × by processor time; {_CROWDED}"
    ),
    VerdictCode.RESULTS_DIFFER: "results differ: {detail}",
    VerdictCode.GUARD_FAILED: "{guard}: {detail}",
}
_ENDS = "{ci_low:signed} and {ci_high:signed}"
_OUTCOMES: dict[str, str] = {
    OutcomeCode.WITHIN_MARGIN: f"the difference lies between {_ENDS}, within ± {{margin:figure}}",
    OutcomeCode.IDENTICAL: "both ended with the same loss, to the last bit, in all {seeds} seeds",
    OutcomeCode.BEYOND_MARGIN: (
        f"the difference is {{difference:signed}} (between {_ENDS}), beyond ± {{margin:figure}}"
    ),
    OutcomeCode.DIFFERS: (
        f"the difference is {{difference:signed}} (between {_ENDS}){{margin:not_within}}"
    ),
    OutcomeCode.TOO_WIDE: (
        f"the difference lies between {_ENDS}; to be EQUIVALENT it must lie within ± "
        "{margin:figure}"
    ),
    OutcomeCode.SAME_VALUES: (
        "every seed of the baseline ended with {value:figure}: there is no spread to judge by"
    ),
    OutcomeCode.SEED_FIXED: (
        "every seed of the baseline trains the same ({value:figure}), because the program sets its "
        "own seed{place:at_place}: the spread between seeds is 0, and the power unknown"
    ),
    OutcomeCode.NOT_FINITE: "the {arm} ended with {value} for seed {seed}",
    OutcomeCode.TRAINING_FAILED: ("the training of the {arm} with seed {seed} failed: {cause}"),
    OutcomeCode.NO_METRIC: "it printed no number after {metric:or_loss}",
    OutcomeCode.TOO_FEW_SEEDS: "{seeds:plural seed} trained both programs; 2 are needed",
    OutcomeCode.OUT_OF_TIME: "the time was over after {seeds} of {planned} seeds",
    OutcomeCode.INTERRUPTED: "interrupted after {seeds} of {planned} seeds",
    OutcomeCode.LOSSES_VARY: (
        "trainings of the {arm} had between {fewest} and {most:losses}: if it continues from "
        "files of an earlier training, let it start anew when RIDGELINE_TRIAL is set in its "
        "environment"
    ),
    OutcomeCode.COARSE: (
        "the differences vary by less than the last printed digit ({resolution:figure}), which "
        "hides how much: the interval reaches one unit of it to either side"
    ),
}
_HELD = (
    "in {looks} of {all_looks} looks while measuring: SM clock down to {sm_mhz} of {sm_max_mhz} MHz"
)
_DISTURBANCES: dict[str, str] = {
    Disturbance.OTHER_PROCESSES: "other processes use {used_cores:.1f} of {cores} cores",
    Disturbance.LOAD: "the 1-minute load is {load:.1f} on {processors} processors",
    Disturbance.STEAL: "the hypervisor takes {share:whole_percent} of the CPU time (steal)",
    Disturbance.TOO_MANY_THREADS: (
        "torch uses {threads} threads and {free_cores:.1f} cores were free: fewer "
        "(OMP_NUM_THREADS={better_threads}) would be steadier"
    ),
    Disturbance.POWERSAVE: "the CPU frequency governor is powersave, which keeps the lowest clock",
    Disturbance.CPU_CLOCK_CAPPED: "the CPU clock is capped at {limit_ghz:.2f} of {max_ghz:.2f} GHz",
    Disturbance.CORE_QUOTA: "a cgroup quota allows {quota_cores:.2g} of {cores} cores",
    Disturbance.FEW_THREADS: "torch uses {threads} of {cores} cores (torch.get_num_threads)",
    Disturbance.HOT: f"thermal throttling {_HELD}, {{temperature_c}} °C",
    Disturbance.POWER_CAP: (
        f"power cap {_HELD}, {{power_w:.0f}} W of a {{power_limit_w:.0f}} W limit"
    ),
    Disturbance.POWER_BRAKE: f"external power brake {_HELD}, {{temperature_c}} °C",
    Disturbance.SYNC_BOOST: (
        f"clocks tied to another GPU's (sync boost) {_HELD}, {{temperature_c}} °C"
    ),
    Disturbance.SLOWDOWN: f"hardware slowdown {_HELD}, {{temperature_c}} °C",
    Disturbance.GPU_SHARED: (
        "{processes:other_processes} on the device, {held_bytes:bytes} of its memory held by others"
    ),
    Disturbance.GPU_BUSY: "the device was {share:whole_percent} busy before we started",
    Disturbance.GPU_UNSEEN: (
        "throttling and other processes on the device cannot be seen: no NVML here"
    ),
    Disturbance.NO_ROOM: "no room on the device for a {dtype} product: not measured",
    Disturbance.ON_DEVICE: "{device}: {cause}",
}
TEMPLATES: dict[str, str] = {
    **RUN, **FIXES, **MEMORY, **_TRIALS, **_SEARCH, **_VERDICTS, **_OUTCOMES, **_DISTURBANCES
}  # fmt: skip
"""Code to template."""


def _difference(share: float) -> str:
    """Return a difference as "1.4 %", one above 10 % without decimals."""
    percent = 100 * share
    if percent >= 10:
        return f"{percent:.0f} %" if percent < 1e6 else "over a million %"
    return f"{f'{percent:.1f}'.removesuffix('.0')} %"


MIN_SHOWN_END, MAX_SHOWN_END = 0.01, 1000.0
"""An end of an interval beyond these is not shown to the digit: from two rounds follow ends of 21
digits."""


def _interval_end(value: float) -> str:
    if value < MIN_SHOWN_END:
        return f"<{MIN_SHOWN_END}"
    return f"{value:.2f}" if value <= MAX_SHOWN_END else f">{MAX_SHOWN_END:,.0f}"


def _rough_percent(share: float) -> str:
    """Return a share as "12 %", one below 1 % as "0.4 %"."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.1f} %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


_UNITS: Mapping[str, Callable[[Any], str]] = {
    **FIX_UNITS,
    **MEMORY_UNITS,
    "bytes": units.bytes_,
    "count": units.count,
    "percent": units.percent,
    "ratio": lambda value: f"{value:.2f} ×",
    "end": _interval_end,
    "seconds": units.seconds,
    "flops": units.flops,
    "ns": lambda value: units.seconds(value / 1e9),
    "device_is": lambda value: f"{value} devices are" if value > 1 else "the device is",
    "device_idles": lambda value: f"{value} devices idle" if value > 1 else "the device idles",
    "to_longest": lambda value: (
        f" to {units.seconds(value / 1e9)} (each has its own window)" if value else ""
    ),
    "idle_because": lambda value: _IDLE_BECAUSE[value],
    "in_brackets": lambda value: f" ({value})" if value else "",
    "three_digits": units.significant,
    "flop": units.flop,
    "rough_percent": _rough_percent,
    "comma": lambda first: "" if first else ", ",
    "semicolon": lambda first: "" if first else "; ",
    "yes_or_no": lambda value: "Yes" if value else "No",
    "above_or_below": lambda value: "above" if value else "below",
    "part_of_step": lambda value: PARTS_OF_STEP[value],
    "other_kernels": lambda value: (
        f"{units.plural(value, 'other kernel')} {'shares' if value == 1 else 'share'}"
    ),
    "of_that_ceiling": lambda value: (
        f" and reaches {_rough_percent(value)} of that ceiling" if value is not None else ""
    ),
    "at_line": lambda value: f" at {value}" if value else "",
    "gaps_a_step": lambda value: (
        f", {units.significant(value, 2)} gaps a step" if value >= 2 else ""
    ),
    "two_digits": lambda value: units.significant(value, 2),
    "whole_percent": lambda value: f"{100 * value:.0f} %",
    "before": lambda value: f"{value} " if value else "",
    "at_place": lambda value: f", at {value}" if value else "",
    "of_bytes": lambda value: f" of {units.bytes_(value)}" if value else "",
    "asked": lambda value: f"{units.bytes_(value)} asked, " if value else "",
    "and_growth": lambda value: f"; memory grew by {units.bytes_(value)} a step" if value else "",
    "host_because": lambda value: _HOST_BECAUSE.get(value, value),
    "phase_name": lambda value: _PHASE_NAMES.get(value, value),
    "phase_of_work": lambda value: "the optimizer" if value == "optimizer" else value,
    "losses": lambda value: units.plural(value, "loss", "losses"),
    "processes": lambda value: units.plural(value, "process", "processes"),
    "no_formula": lambda value: f": no formula for {value}" if value else "",
    "too_few_steps": lambda value: (
        f"{units.plural(value, 'step')} {'is' if value == 1 else 'are'} too few"
    ),
    "at_or_after": lambda value: "at" if value else "after",
    "also": lambda value: f"; also {value}" if value else "",
    "some_time": lambda value: "some time " if value else "",
    "last_watched": lambda value: ", the last one watched" if value else "",
    "in_its": lambda value: f" in its {value}" if value else "",
    "ceiling_source": lambda value: "datasheet" if value == "datasheet" else "measured here",
    "difference": _difference,
    "fine_ratio": lambda value: f"{value:.3f}" if 0.9 < value < 1.1 else f"{value:.3g}",
    "more_rounds": lambda factor: (
        f"; about {factor} × as many rounds would settle it"
        if factor
        else "; no number of rounds worth running would settle it"
    ),
    "at_step": lambda value: "" if value is None else f" (at its step {value})",
    "after_colon": lambda value: f": {value}" if value else "",
    "later_run": lambda value: f" in run number {value}{_RUN_AGAIN}" if value > 1 else "",
    "no_measure": lambda value: _NO_MEASURE[value],
    "figure": figure,
    "signed": signed,
    "not_within": lambda value: (
        f", and may be more than ± {figure(value)}" if value is not None else ""
    ),
    "other_processes": lambda value: (
        units.plural(value, "other process", "other processes")
        if value
        else "unlisted other processes"
    ),
    "or_loss": lambda value: repr(value or "loss"),
    "or_too_short": lambda value: value or "the program takes too few steps",
}


_HOST_BECAUSE: dict[str, str] = {
    "synchronisation": "the host stops to wait for it",
    "launch-bound": "the host cannot launch work fast enough",
    "allocator": "the host allocates memory",
    "compile": "the host compiles",
    "garbage collection": "the host collects garbage",
    "other host": "the host is in the program's own code",
    "between kernels": "there are many small kernels, with a gap after each",
    "unknown": "the host is late, and the trace does not say why",
}
"""Why the GPU waits for the host, by the trace's name of the cause."""
_IDLE_BECAUSE: dict[str, str] = {
    "input": "waiting for input",
    "synchronisation": "because the host waited for the device",
    "transfer": "while data was copied to it",
    "launch-bound": "because the host could not launch work fast enough",
    "allocator": "while memory was being allocated",
    "compile": "while code was being compiled",
    "collective wait": "while the host waited for other ranks",
    "garbage collection": "during garbage collection",
    "other host": "while the host was in the program's own code",
    "between kernels": "between kernels already queued",
    "unknown": "for reasons the trace does not hold",
}
"""Why a device idled, by the trace's name of the cause."""
_PHASE_NAMES: dict[str, str] = {
    "optimizer": "optimizer step",
    "other": "code outside the model",
}
"""Phases whose name alone does not say what they are."""


class _UnitFormatter(string.Formatter):
    """Understands the names of units as format specifications."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("plural "):
            return units.plural(value, format_spec.removeprefix("plural "))
        unit = _UNITS.get(format_spec)
        return unit(value) if unit is not None else str(super().format_field(value, format_spec))


_FORMATTER = _UnitFormatter()


def explain(reason: Reason | None, *, figures: bool = True) -> str:
    """Return the reason as a clause without a full stop; "" if there is no reason.

    Without `figures` the ratio of a contest is left out, for tables that have a column for it.
    """
    if reason is None:
        return ""
    facts = {**reason.facts, "cause": explain(reason.cause)}
    template = TEMPLATES[reason.code]
    if not figures:
        template = _WITHOUT_FIGURES.get(reason.code, template)
    return fill(template, facts)


def reason_data(reason: Reason) -> dict[str, Any]:
    """Return what JSON documents say of a reason: its code, its facts, and its English."""
    made: dict[str, Any] = msgspec.to_builtins(reason)
    return {**made, "text": explain(reason)}


def record_data(record: Struct, field: str) -> dict[str, Any]:
    """Return a record for JSON documents. The reasons in `field` have their English beside them."""
    made: dict[str, Any] = msgspec.to_builtins(record)
    return {**made, field: [reason_data(reason) for reason in getattr(record, field)]}


def fill(template: str, facts: Mapping[str, Any]) -> str:
    """Return a template with the facts in it, each in its unit."""
    return _FORMATTER.vformat(template, (), facts)


def applied_record(applied: Applied) -> dict[str, Any]:
    """Return what documents say of an applied fix: its id, what it did, and the lines."""
    places = [str(target.place) for target in applied.targets if target.place is not None]
    return {
        "change": applied.fix, "what": explain_applied(applied),
        "places": list(dict.fromkeys(places)),
    }  # fmt: skip


def explain_applied(applied: Applied) -> str:
    """Return what a fix did to all its targets: `AdamW(fused=True); SGD(fused=True)`."""
    return "; ".join(dict.fromkeys(explain(target.done) for target in applied.targets))


def explain_earlier(earlier: Earlier | None) -> str:
    """Return how a fix did in another contest: `with torch.compile: worse: 0.93 ×`."""
    if earlier is None:
        return ""
    partners = f"with {', '.join(earlier.together)}" if earlier.together else "alone"
    return f"{partners}: {explain(earlier.reason)}"


def verdict_sentence(verdict: Verdict) -> str:
    """Return in one sentence what limits a run. It begins with the name of the bound, except for a
    late rank."""
    text = verdict_reason(verdict)
    return text if verdict.bound == "late-rank" else f"{verdict.bound}: {text}"


def verdict_reason(verdict: Verdict) -> str:
    """Return what limits a run, without the name of the bound."""
    return "".join(explain(reason) for reason in (verdict.reason, *verdict.also))


def trace_verdict(study: TraceStudy) -> str:
    """Return in a sentence what held the device back, and which rank was late."""
    late = study.ranks.late if study.ranks is not None else ""
    return "; ".join(filter(None, (explain(study.verdict), late)))


def deciding_number(number: Deciding) -> tuple[str, str]:
    """Return the name of a deciding number, and its value in words."""
    name, text = NUMBERS[number.code]
    facts = {**number.facts, "value": number.value}
    return fill(name, facts), fill(text, facts)


def question(answer: Answer) -> str:
    """Return the question that a performance engineer asks."""
    return QUESTIONS[answer.question]


def answer_text(answer: Answer) -> str:
    """Return the answer to the question in a sentence or two."""
    return "".join(map(explain, answer.clauses))


def answer_data(answer: Answer) -> dict[str, Any]:
    """Return what JSON documents say of an answer: its English, and its clauses."""
    clauses = msgspec.to_builtins(answer.clauses)
    return {"question": question(answer), "text": answer_text(answer), "clauses": clauses}


def explain_doubts(trust: Trust) -> str:
    """Return why a figure is doubtful; "" if it is not."""
    return "; ".join(text for text in (trust.why, *map(explain, trust.doubts)) if text)
