"""The one place where reasons become English: a template for every code.

A template names the facts of its reason in braces and may format them with a unit:
`"{free_s:seconds} are left"`, `"{workers:plural worker}"`. `{cause}` is the reason behind the
reason. A test checks that every code has a template.
"""

import string
from collections.abc import Callable, Mapping
from typing import Any

from ridgeline import units
from ridgeline.records.comparison import VerdictCode
from ridgeline.records.facts import Reason
from ridgeline.records.optimized import Earlier, SearchCode
from ridgeline.records.reason_codes import Skip
from ridgeline.records.trial import TrialFailure
from ridgeline.records.trust import Trust
from ridgeline.records.verdict import Deciding, Verdict
from ridgeline.report.run_reasons import NUMBERS
from ridgeline.report.run_reasons import TEMPLATES as RUN

_RATIO = "{value:ratio} [{ci_low:.2f}, {ci_high:.2f}]"
_TRIALS: dict[str, str] = {
    TrialFailure.TIMED_OUT: "it had not ended after {limit_s:.0f} s{step:at_step}",
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
    "; or does it continue from what an earlier run has written? Then look for RIDGELINE_TRIAL in "
    "its environment"
)
_SEARCH: dict[str, str] = {
    SearchCode.FASTER: _RATIO,
    SearchCode.SLOWER: f"worse: {_RATIO}",
    SearchCode.SAME: f"no difference that matters: {_RATIO}",
    SearchCode.UNDECIDED: f"not known to be better: {_RATIO} after {{pairs:plural pair}}",
    SearchCode.RESULTS_DIFFER: "{detail}",
    SearchCode.TOO_SLOW: "a step takes {factor:.1f} × as long",
    SearchCode.BASELINE_FAILED: "the program without it: {cause}",
    SearchCode.TOO_FEW_STEPS: "it took too few steps to be timed",
    SearchCode.NO_MEASURE: "{measure:no_measure}",
    SearchCode.NOTHING_TO_CHANGE: "it found nothing to change",
    SearchCode.NOT_APPLIED: "{detail}",
    SearchCode.OUT_OF_TIME: "too little time was left",
    SearchCode.TOO_LITTLE_TIME: (
        "too little time was left for it: {free_s:seconds}, and a pair may take {pair_s:seconds}"
    ),
    SearchCode.INTERRUPTED: "interrupted",
    SearchCode.INTERRUPTED_AFTER: "interrupted: {value:ratio} after {pairs:plural pair}",
    SearchCode.NEEDS_ALLOW: "it alters what is computed: --allow {fix}",
    SearchCode.NEEDS_ALLOW_ARGUMENT: 'it alters what is computed: allow="{fix}"',
    SearchCode.NEEDS_BATCH: "another batch size trains differently: --batch",
    SearchCode.NEEDS_BATCH_ARGUMENT: "another batch size trains differently: batch=True",
    SearchCode.NOT_EXACT: "it alters {alters}",
    SearchCode.BOUND_TOO_SMALL: "at most {bound:ratio} to gain",
    SearchCode.BOUND_WITHIN_NOISE: (
        "at most {bound:ratio} to gain, which this machine's noise would hide"
    ),
    SearchCode.KEPT_DOES_MORE: "{title} is kept, which does more",
    SearchCode.SAVES_MEMORY: "it saves memory and takes time: {goal} was asked for",
    SearchCode.CANNOT_HELP: "{detail}",
    SearchCode.NEEDS_OWN_PROCESS: (
        "it needs a process of its own: use `ridgeline optimize script.py`"
    ),
    SearchCode.REPLACED: "{title} is better",
    SearchCode.REDUNDANT: "of no use beside the others: {cause}",
    SearchCode.NOT_REPEATED: f"not sure enough: measured again it gave {_RATIO}",
    SearchCode.NOTHING_WITHOUT: "it does nothing without {title}",
    SearchCode.NOT_CONFIRMED: f"not confirmed in fresh processes: {_RATIO}",
    SearchCode.LARGER_BATCH_BETTER: "a larger one is better",
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
    SearchCode.DATA_VARIES: f"the baseline has other data each time it is run: seed it{_RUN_AGAIN}",
    SearchCode.FIRST_LOSS_VARIES: (
        f"the baseline has another first loss each time it is run: seed it{_RUN_AGAIN}"
    ),
}
_WITHOUT_FIGURES: dict[str, str] = {
    SearchCode.FASTER: "",
    SearchCode.SLOWER: "worse",
    SearchCode.SAME: "no difference that matters",
    SearchCode.UNDECIDED: "not known to be better after {pairs:plural pair}",
}
"""Templates of reasons whose ratio stands in a column of its own."""
_NO_MEASURE = {
    "step time": "the program takes too few steps to be timed",
    "time a sample": "the number of samples in a step was not seen",
    "peak memory": "the peak memory of the program was not seen",
    "energy a sample": (
        "the energy was not measured: the machine does not report it, or the steps ended too soon"
    ),
}

_TIMES_AS_FAST = "{ratio:fine_ratio} × as fast ({ci_low:fine_ratio} to {ci_high:fine_ratio})"
_CROWDED = "other programs had the processors {taken_share:difference} of the time"
_SKIPPED: dict[str, str] = {
    Skip.NO_GPU: "it needs a GPU",
    Skip.NO_CPU_WORK: "it is for a CPU, and the work is on the GPU",
    Skip.GPU_LACKS: "this GPU has no {feature}",
    Skip.GPU_HAS_BFLOAT16: "this GPU has bfloat16, which needs no scaled loss",
    Skip.DTYPE_EMULATED: "this processor emulates {dtype}: 5 to 20 times slower",
    Skip.NO_INT8_PRODUCTS: "torch has no 8-bit products for this processor",
    Skip.NO_COMPILER: "torch.compile cannot run here: there is no C++ compiler or no Triton",
    Skip.TORCH_LACKS: "this version of torch has no {feature}",
    Skip.NO_AFFINITIES: "this system cannot bind a program to cores",
    Skip.NOT_GLIBC: "the C library is not glibc",
    Skip.ONE_CORE: "there is one core, and one thread",
    Skip.NUMA_UNKNOWN: "the system does not say which cores lie beside which memory",
    Skip.ONE_NUMA_NODE: "the machine has one NUMA node: memory is equally near to all its cores",
    Skip.GPU_NODE_UNKNOWN: "the system does not say which NUMA node the GPU belongs to",
    Skip.NO_CORE_NEAR_GPU: "the program may use no core beside the GPU",
    Skip.NODE_TOO_SMALL: "{threads:plural thread} and {workers:plural worker} need more than the "
    "{cores:plural core} of a NUMA node",
    Skip.NODE_NOT_ALLOWED: "the program may use no core of that NUMA node",
    Skip.ALREADY_SET: "the program has {setting} already",
    Skip.ALREADY_FUSED: "the optimizer is fused already, which is faster",
    Skip.TORCH_DOES_SO: "torch does so by itself on a GPU",
    Skip.FUSED_IS_BETTER: "torch has a fused {optimizer}, which is faster",
    Skip.EVERY_CORE_ALLOWED: "the program may use every core already",
    Skip.BOUND_TO_CORES: "the program is bound to {allowed_cores} of {all_cores} cores already",
    Skip.BOUND_TO_NODE: "the program is bound to the cores of one NUMA node already",
    Skip.SET_BY_ENVIRONMENT: "{variable} is set around the program",
    Skip.ENOUGH_WORKERS: "its loaders have {workers} workers for {cores} cores already",
    Skip.DATASET_ON_GPU: "the tensors of the dataset are on the GPU already",
    Skip.DOES_NOT_TRAIN: "the program does not train",
    Skip.TRAINS: "the program trains",
    Skip.NO_LOADER: "the program has no DataLoader",
    Skip.NOT_A_LOADER: "the loader is a {loader}, not a DataLoader",
    Skip.NO_WORKERS: "the loader has no workers",
    Skip.WORKERS_START_ONCE: "no loader started its workers a second time in the steps seen",
    Skip.NO_BATCHING: "the loader does not put batches together itself",
    Skip.ONE_BATCH: "the loader makes one batch, so none can be made ahead",
    Skip.NO_COPIES: "nothing is copied to the GPU in a step",
    Skip.NO_BLOCKING_COPY: "no copy was found that the program waits for",
    Skip.NO_PINNED_COPY: "no copy of pinned memory to the GPU was seen",
    Skip.NO_OPTIMIZER: "the program has no optimizer",
    Skip.NO_KNOWN_OPTIMIZER: "the program made none of torch's own optimizers",
    Skip.OPTIMIZER_NOT_TORCHS: "{optimizer} is not one of torch's own optimizers",
    Skip.NO_FUSED_OPTIMIZER: "torch has no fused {optimizer}",
    Skip.NO_ZERO_FILL: "no time is lost on filling gradients with zeros",
    Skip.NO_MODEL_CALL: "no module was called to train",
    Skip.NO_CONVOLUTION: "no convolution was seen",
    Skip.NO_FOLDABLE_NORM: "no convolution passes its output to a batch norm in evaluation mode "
    "and to nothing else",
    Skip.NO_REPEATED_BLOCKS: "the model has no repeated blocks that make up most of it",
    Skip.NO_LARGE_LINEAR: "no Linear layer has a weight of {min_elements:,} elements or more",
    Skip.NO_WIDE_LINEAR: "no Linear layer but the last is {min_width} wide in multiples of 16",
    Skip.NO_ODD_WIDTH: "no large product has a side that is not a multiple of {multiple}",
    Skip.NO_16_BIT_PRODUCTS: "its products are not in 16 bits",
    Skip.NO_FLOAT32: "{model} has nothing in float32",
    Skip.NO_LARGE_LOSS: "no eager cross-entropy over {min_classes:,} classes or more is large "
    "enough",
    Skip.NO_WRITTEN_ATTENTION: "no attention that is written out was found to cost time",
    Skip.NO_AFFINITY_LIMIT: "no affinity was found to hold the program back",
    Skip.SAME_SHAPES: "the shapes are the same at every step",
    Skip.NOTHING_REWRITTEN: "no function of the model was the one to rewrite",
    Skip.NO_BACKWARD_CAPTURED: "no backward was captured",
    Skip.PROGRAM_SETS: "the program sets {setting} itself",
    Skip.OTHER_ALLOCATOR: "the environment chooses another allocator: {allocator}",
    Skip.VARIABLE_NOT_SET: "{variable} was not set when the program began",
    Skip.MALLOPT_REFUSED: "the C library refused the settings",
    Skip.SHAPES_CHANGE: "shapes change from step to step, and each new one would be prepared again",
    Skip.DETERMINISTIC: "the program asks for deterministic algorithms",
    Skip.SEVERAL_OPTIMIZERS: "it must skip a step that overflows, which takes exactly one "
    "optimizer; the program has {optimizers}",
    Skip.NOT_CAPTURABLE: "torch has no {optimizer} that can be captured",
    Skip.DIFFERENTIABLE_UPDATE: "a differentiable update cannot be captured",
    Skip.SCALER_ASKS_EVERY_STEP: "a gradient scaler asks at each step whether it overflowed",
    Skip.FLOAT16_WITH_SCALER: "the program trains in float16 with a scaled loss",
    Skip.COMPILED_MODEL: "the program compiles its model, which 8-bit layers would break up",
    Skip.COMPILED_CALLER: "the program calls its model in a function that it compiles",
    Skip.LOOP_NOT_A_FUNCTION: "the loop is the program's own: only a step given as a function can "
    "be captured whole",
    Skip.NEEDS_A_PROCESS: "it needs a process of its own: use `ridgeline optimize script.py`",
    Skip.TOO_FEW_STEPS: "too few steps were taken to capture one",
    Skip.TOO_FEW_BATCHES: "{batches} batches an epoch are too few to be made larger",
    Skip.TOO_FEW_BATCHES_LEFT: "{batches} batches of {batch_size} would be left in an epoch, fewer "
    "than {min_batches}",
    Skip.BATCH_OF_ONE: "a batch of one sample cannot be divided",
    Skip.EVALUATION_DATASET: "the dataset says that it is for evaluation",
    Skip.EVALUATION_LOADER: "the loader neither shuffles nor is the first: it is taken for one of "
    "an evaluation",
    Skip.STREAM_SHARED_BY_WORKERS: "more workers that share a stream make other batches of it",
    Skip.STREAM_KEEPS_POSITION: "the dataset keeps its position in {attribute}, of which a worker "
    "has a copy each epoch",
    Skip.OPEN_FILE: "the dataset keeps a {file_kind} open, whose position forked workers would "
    "share",
    Skip.OWN_GENERATOR: "the dataset keeps a {generator}: each worker would draw the same numbers "
    "from its copy",
    Skip.NOT_PICKLABLE: "the {argument} of the loader cannot be pickled: {error}",
    Skip.SET_EPOCH: "the dataset has set_epoch(), which workers that stay would not see",
    Skip.DDP_SENDS_IN_BACKWARD: "DDP sends gradients from inside the backward",
    Skip.WRAPPED_IN_DDP: "the model is in DDP, which laid out its gradients when it was made",
    Skip.SHARDED_MODEL: "the model is sharded: its ranks would overflow one by one",
    Skip.LAUNCHER_BINDS: "its {ranks} processes need a NUMA node each, which the launcher must "
    "give: newer ones have torchrun --numa-binding=node",
    Skip.TORCHSCRIPT: "{model} is TorchScript",
    Skip.IS_A_LOSS: "{model} is a loss, which stays in float32",
    Skip.COMPILE_DISABLED: "the program keeps {model} from being compiled",
    Skip.TRAINING_MODE: "the model is in training mode",
    Skip.INPUT_NEEDS_GRADIENT: "the model is given tensors that need gradients",
    Skip.RUNNING_STATISTICS: "its blocks keep running statistics (BatchNorm), which would count "
    "every batch twice",
    Skip.BATCH_NORM_IN_PARTS: "a batch norm would see parts of a batch",
    Skip.FILLS_A_CACHE: "the model fills a cache as it runs",
    Skip.DRAWS_RANDOM_NUMBERS: "the model draws random numbers (dropout): parts of a batch would "
    "draw others",
    Skip.WRITES_BUFFERS: "the model writes its buffers as it runs, so it cannot be run again",
    Skip.TOO_FEW_ROWS: "the model's first tensor has fewer than {parts} rows",
    Skip.SAMPLES_MEET: "called in parts its outputs differ by {error_share:percent}: the model "
    "mixes samples",
    Skip.LINEAR_NOT_CALLED: "its Linear layers are not called one by one: a fused path uses their "
    "weights",
    Skip.LINEAR_NOT_ALIGNED: "no product of its Linear layers has sizes in multiples of {multiple}",
    Skip.OUTPUTS_NOT_FINITE: "outputs in {dtype} are not finite, or there are none to compare",
    Skip.OUTPUTS_TOO_FAR_OFF: "in {dtype} its outputs are off by {error_share:percent} of their "
    "norm",
    Skip.GRADIENT_HOOK: "a backward hook of a {owner} would see scaled gradients",
    Skip.TRAINED_OUTSIDE_FLOAT32: "some parameters that train are not in float32",
    Skip.MISSING_GRADIENT: "a parameter got no gradient in a step: zeros would still have moved it",
    Skip.NO_ZERO_GRAD_CALL: "zero_grad(set_to_none=False) was not called",
    Skip.TOO_FEW_UPDATES: "fewer than {min_updates} updates were seen after "
    "zero_grad(set_to_none=False)",
    Skip.NO_STEP_ENDED: "no step ended, so it was not seen whether the program sets it",
    Skip.ATTENTION_NOT_REWRITABLE: "{detail}",
    Skip.FUNCTION_NOT_FOUND: "{function}() of {place} was not found where the program runs",
    Skip.FAILED_TO_APPLY: "it could not be applied: {error}",
}
_VERDICTS: dict[str, str] = {
    VerdictCode.TOO_FEW_ROUNDS: "only {rounds:plural round}; {needed} are needed",
    VerdictCode.CONTROL_DIFFERS: (
        "identical code looked {difference:difference} apart: no verdict can be believed"
    ),
    VerdictCode.BEYOND_THRESHOLD: (
        f"{_TIMES_AS_FAST}, more than the {{threshold:difference}} that matters"
    ),
    VerdictCode.BEYOND_CONTROL: (
        f"{_TIMES_AS_FAST}, more than the {{floor:difference}} of identical code"
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
        "a difference of {difference:difference} was found, but identical code looked "
        "{floor:difference} apart in the same rounds{rounds_factor:more_rounds}"
    ),
    VerdictCode.BY_PROCESSOR_TIME: f"by processor time, because {_CROWDED}: {{cause}}",
    VerdictCode.MEASURES_DISAGREE: (
        f"{{verdict}} by wall time, but {{ratio:.3g}} × by processor time; {_CROWDED}"
    ),
    VerdictCode.RESULTS_DIFFER: "results differ: {detail}",
    VerdictCode.GUARD_FAILED: "{guard}: {detail}",
}
TEMPLATES: dict[str, str] = {**RUN, **_TRIALS, **_SEARCH, **_SKIPPED, **_VERDICTS}
"""Code to template."""


def _difference(share: float) -> str:
    """Return a difference as "1.4 %", one above 10 % without decimals."""
    percent = 100 * share
    if percent >= 10:
        return f"{percent:.0f} %" if percent < 1e6 else "over a million %"
    return f"{f'{percent:.1f}'.removesuffix('.0')} %"


_UNITS: Mapping[str, Callable[[Any], str]] = {
    "bytes": units.bytes_,
    "count": units.count,
    "percent": units.percent,
    "ratio": lambda value: f"{value:.2f} ×",
    "seconds": units.seconds,
    "flops": units.flops,
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
    "processes": lambda value: units.plural(value, "process", "processes"),
    "no_formula": lambda value: f": no formula for {value}" if value else "",
    "too_few_steps": lambda value: (
        f"{units.plural(value, 'step')} {'is' if value == 1 else 'are'} too few"
    ),
    "at_or_after": lambda value: "at" if value else "after",
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
    "or_too_short": lambda value: value or "the program takes too few steps",
}


_HOST_BECAUSE: dict[str, str] = {
    "synchronisation": "the host stops to wait for it",
    "launch-bound": "the host cannot launch work fast enough",
    "allocator": "the host allocates memory",
    "compile": "the host compiles",
    "garbage collection": "the host collects garbage",
    "other host": "the host is in the program's own code",
    "between kernels": "many small kernels, with a gap after each",
    "unknown": "the host is late, the trace does not say why",
}
"""Why the GPU waits for the host, by the trace's name of the cause."""
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


def fill(template: str, facts: Mapping[str, Any]) -> str:
    """Return a template with the facts in it, each in its unit."""
    return _FORMATTER.vformat(template, (), facts)


def explain_earlier(earlier: Earlier | None) -> str:
    """Return how a fix did in another contest: `with torch.compile: worse: 0.93 ×`."""
    if earlier is None:
        return ""
    partners = f"with {', '.join(earlier.together)}" if earlier.together else "alone"
    return f"{partners}: {explain(earlier.reason)}"


def verdict_sentence(verdict: Verdict) -> str:
    """Return what limits a run in one sentence, which begins with the name of the bound. Only a
    late rank is named without it."""
    text = verdict_reason(verdict)
    return text if verdict.bound == "late-rank" else f"{verdict.bound}: {text}"


def verdict_reason(verdict: Verdict) -> str:
    """Return what was found, without the name of the bound."""
    return "".join(explain(reason) for reason in (verdict.reason, *verdict.also))


def deciding_number(number: Deciding) -> tuple[str, str]:
    """Return the name of a deciding number, and its value in words."""
    name, text = NUMBERS[number.code]
    facts = {**number.facts, "value": number.value}
    return fill(name, facts), fill(text, facts)


def explain_doubts(trust: Trust) -> str:
    """Return why a figure cannot be believed further; "" if nothing speaks against it."""
    return "; ".join(text for text in (trust.why, *map(explain, trust.doubts)) if text)
