"""One trial, seen from outside: the program started with a plan, waited for, and read back."""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ridgeline.errors import RidgelineError
from ridgeline.harness.capture import launch
from ridgeline.harness.trials.begin import PLAN, RANKS
from ridgeline.harness.trials.ending import RESULT
from ridgeline.harness.trials.loader_queue import as_sustained, emptied, made_ahead, still_made
from ridgeline.harness.trials.process_memory import ON_DEVICE, Family
from ridgeline.harness.trials.timed_steps import is_timed, later_steps
from ridgeline.harness.usercode.child_process import Ended, no_leftovers, to_its_end
from ridgeline.harness.usercode.forked_work import ASIDE
from ridgeline.records.facts import Reason, because
from ridgeline.records.run import Capture, LoaderSeen, Step, Target, feeding
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.trial import Plan, Trial, TrialFailure
from ridgeline.units import plural

IN_A_TRIAL = "RIDGELINE_TRIAL"
"""Set to the trial's own folder, for the program to see and for us to find what it leaves running:
a trial writes what any run of the program writes."""
COMPILED = "inductor"
"""What a set of changes compiles lies there, in its own folder."""
NO_INPUT = "EOFError: EOF when reading a line"
_IN_A_WORKER = " in DataLoader worker process "


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a trial: a record, or why there is none."""

    trial: Trial | None = None
    failure: Reason | None = None
    """Why there is no record: a `TrialFailure` with its facts."""
    timed_out: bool = False
    remembered: bool = False
    """Whether the trial was run by an earlier command."""
    cut: bool = False
    """Whether the budget ended the trial, so that it says nothing about the fixes."""
    said: tuple[str, ...] = ()
    """The last lines that the program printed."""
    wall_s: float = 0.0


def run(
    target: Target,
    plan: Plan,
    home: Path,
    *,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 900.0,
) -> Outcome:
    """`home` is made, and keeps what the trial compiled: a second one there starts faster."""
    home.mkdir(parents=True, exist_ok=True)
    directory = home / "trial"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    (directory / PLAN).write_bytes(msgspec.json.encode(plan))
    environment = launch.environment(directory, 0, "ridgeline.harness.trials.begin")
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(home.absolute() / COMPILED)
    environment[IN_A_TRIAL] = str(directory.absolute())
    # A vocabulary made from a set of words has another order in every process.
    environment.setdefault("PYTHONHASHSEED", str(plan.seed % 2**32))
    environment.update(variables or {})
    command = launch.command(target.kind, target.name, target.arguments)
    began = time.perf_counter_ns()
    on_device = (directory / ON_DEVICE, directory / RANKS / ON_DEVICE)
    family = Family(until=on_device, beside=directory / ASIDE)
    with no_leftovers(IN_A_TRIAL, environment[IN_A_TRIAL]):
        ended = to_its_end(command, environment, timeout_s, family.look)
    if (directory / RANKS).is_dir():
        directory = directory / RANKS
    if ended.code == 0:
        return _read(directory, plan, ended, began, family)
    failure = _failure(ended, timeout_s, _last_words(directory))
    late = ended.code is None
    return Outcome(failure=failure, timed_out=late, said=ended.said, wall_s=ended.wall_ns / 1e9)


def _failure(ended: Ended, timeout_s: float, capture: Capture | None) -> Reason:
    if ended.code is None:
        step = capture.steps + 1 if capture is not None else None
        return because(TrialFailure.TIMED_OUT, limit_s=timeout_s, step=step)
    if ended.signal:
        return because(TrialFailure.KILLED, signal=ended.signal)
    error = capture.why if capture is not None and capture.ended == "raised" else ""
    # The program caught and printed the error, or another of its processes raised it.
    if not error or _IN_A_WORKER in error:
        printed = [line for line in ended.said if "Error" in line or "Exception" in line]
        error = printed[-1].strip()[:300] if printed else error
    if error == NO_INPUT:
        return because(TrialFailure.NO_STANDARD_INPUT, error=error)
    if error:
        return because(TrialFailure.RAISED, error=error)
    # argparse says on its last line which argument is missing.
    last_line = ended.said[-1].strip()[:200] if ended.said else ""
    return because(TrialFailure.EXITED, exit_code=ended.code, last_line=last_line)


def _last_words(directory: Path) -> Capture | None:
    """Of the rank that raised, where one did."""
    try:
        captures = RunDirectory(directory).captures()
    except RidgelineError:
        return None
    raised = [capture for capture in captures if capture.ended == "raised"]
    return next(iter((*raised, *captures)), None)


def _read(directory: Path, plan: Plan, ended: Ended, began_ns: int, family: Family) -> Outcome:
    wall = ended.wall_ns / 1e9
    try:
        trial = msgspec.msgpack.decode((directory / RESULT).read_bytes(), type=Trial)
        steps = [step for step in RunDirectory(directory).steps() if _counts(step, plan)]
    except (OSError, msgspec.DecodeError, RidgelineError) as error:
        failure = because(TrialFailure.RECORD_DAMAGED, error=str(error))
        if isinstance(error, OSError):
            capture = _last_words(directory)
            has_torch = capture is None or capture.torch_imported
            failure = because(TrialFailure.NO_RECORD if has_torch else TrialFailure.NO_TORCH)
        return Outcome(failure=failure, said=ended.said, wall_s=wall)
    capture = _last_words(directory)
    ours = capture.problems if capture is not None else ()
    own = 0 if directory.name == RANKS else trial.own_peak_bytes  # a rank's is not the launcher's
    on_host = family.peak_bytes(own, trial.others_bytes)
    return Outcome(
        trial=replace(
            _timed(trial, steps, plan, feeding(capture.loaders if capture is not None else ())),
            later=later_steps(trial, steps),
            handed={},
            system_share=capture.system_share if capture is not None else None,
            peak_bytes=trial.peak_bytes or on_host or ended.peak_rss_bytes,
            compile_s=sum(step.compile_ns for step in steps) / 1e9,
            first_step_s=(steps[0].start_ns + steps[0].dur_ns - began_ns) / 1e9 if steps else 0.0,
            ended=trial.ended or _ended(len(steps), plan),
            problems=(*trial.problems, *ours),
        ),
        said=ended.said,
        wall_s=wall,
    )


def _counts(step: Step, plan: Plan) -> bool:
    """Calls before the first backward (a policy, a cell) are no steps of a program that trains."""
    return not plan.trains or step.backwards > 0 or step.optimizer_steps > 0 or step.skipped


def _timed(trial: Trial, steps: list[Step], plan: Plan, loader: LoaderSeen) -> Trial:
    timed = [step for step in steps[plan.watch + 1 :] if is_timed(step, trial)]
    timed = timed[: still_made([step.index for step in timed], trial.queue)]
    ahead = made_ahead(loader.workers, loader.prefetch_factor)
    device = bool(timed) and all(step.device_ns for step in timed)
    full = emptied([_waiting([step], device) or 0.0 for step in timed], loader.workers)
    timed = timed[min(max(ahead, full), len(timed) // 2) :]
    each = [(step.device_ns or 0) if device else step.dur_ns for step in timed]
    queue = {one.step: one for one in trial.queue}
    return replace(
        trial,
        step_ns=as_sustained(each, [queue.get(step.index) for step in timed], loader.workers),
        samples=tuple(step.samples or None for step in timed),
        input_share=_waiting(timed, device),
    )


def _waiting(steps: Sequence[Step], device: bool) -> float | None:
    """On the device's own timeline where there is one: exposed."""
    detailed = [step for step in steps if step.detailed]
    whole = sum((step.device_ns or 0) if device else step.dur_ns for step in detailed)
    waits = sum((step.device if device else step.host).get("input", 0) for step in detailed)
    return waits / whole if whole else None


def _ended(steps: int, plan: Plan) -> str:
    if steps >= plan.steps:
        return ""
    if not steps:
        return "the program took no step"
    return f"the program ended after {plural(steps, 'step')}"
