"""One trial, seen from outside: a fresh process of the program with a plan, waited for and read."""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ridgeline.errors import RidgelineError
from ridgeline.harness.capture.launch import FreshProgram
from ridgeline.harness.trials.begin import RANKS
from ridgeline.harness.trials.ending import RESULT
from ridgeline.harness.trials.loader_queue import (
    as_sustained,
    first_steady_step,
    made_ahead,
    steps_before_last_batch,
)
from ridgeline.harness.trials.process_memory import ON_DEVICE, FamilyMemory
from ridgeline.harness.trials.timed_steps import is_timed, later_steps
from ridgeline.harness.usercode.child_process import Ended
from ridgeline.harness.usercode.forked_work import FORK_MARK
from ridgeline.records.facts import Reason, because
from ridgeline.records.run import Capture, LoaderSeen, Step, Target, training_loader
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.trial import Plan, Trial, TrialFailure
from ridgeline.units import plural

COMPILED = "inductor"
"""Name of the folder for what a set of fixes compiles, in the folder of the set."""
NO_INPUT = "EOFError: EOF when reading a line"
_IN_A_WORKER = " in DataLoader worker process "


class Outcome(Struct, frozen=True, kw_only=True):
    """Says what became of a trial: a record, or why there is none."""

    trial: Trial | None = None
    failure: Reason | None = None
    """Why there is no record: a `TrialFailure` with its facts."""
    timed_out: bool = False
    remembered: bool = False
    """Whether the trial was run by an earlier command."""
    cut: bool = False
    """Whether the budget ended the trial, so that it says nothing about the fixes."""
    last_lines: tuple[str, ...] = ()
    """The last lines that the program printed."""
    wall_s: float = 0.0


def run(
    target: Target,
    plan: Plan,
    home: Path,
    *,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 900.0,
    name: str = "trial",
) -> Outcome:
    """Run a trial of the program. `home` is made, and keeps what the trial compiled, so that a
    second trial there starts faster. Trials that run there at the same time have other names."""
    home.mkdir(parents=True, exist_ok=True)
    directory = home / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    program = FreshProgram(
        target, directory, "ridgeline.harness.trials.begin", plan,
        seed=plan.seed, compiled=home / COMPILED,
    )  # fmt: skip
    began = time.perf_counter_ns()
    on_device = (directory / ON_DEVICE, directory / RANKS / ON_DEVICE)
    memory = FamilyMemory(until=on_device, fork_mark=directory / FORK_MARK)
    ended = program.run(timeout_s, variables=variables, look=memory.look)
    if (directory / RANKS).is_dir():
        directory = directory / RANKS
    if ended.code == 0:
        return _read(directory, plan, ended, began, memory)
    return Outcome(
        failure=failure_of(ended, timeout_s, directory),
        timed_out=ended.code is None,
        last_lines=ended.last_lines,
        wall_s=ended.wall_ns / 1e9,
    )


def failure_of(ended: Ended, timeout_s: float, directory: Path) -> Reason:
    """Return why a program that was recorded in `directory` ended as it did."""
    capture = _last_capture(directory)
    if ended.code is None:
        step = capture.steps + 1 if capture is not None else None
        return because(TrialFailure.TIMED_OUT, limit_s=timeout_s, step=step)
    if ended.signal:
        return because(TrialFailure.KILLED, signal=ended.signal)
    error = capture.why if capture is not None and capture.ended == "raised" else ""
    # The program caught and printed the error, or another of its processes raised it.
    if not error or _IN_A_WORKER in error:
        printed = [line for line in ended.last_lines if "Error" in line or "Exception" in line]
        error = printed[-1].strip()[:300] if printed else error
    if error == NO_INPUT:
        return because(TrialFailure.NO_STANDARD_INPUT, error=error)
    if error:
        return because(TrialFailure.RAISED, error=error)
    # argparse says on its last line which argument is missing.
    last_line = ended.last_lines[-1].strip()[:200] if ended.last_lines else ""
    return because(TrialFailure.EXITED, exit_code=ended.code, last_line=last_line)


def _last_capture(directory: Path) -> Capture | None:
    """Return the last record of a rank: of the one that raised, if one did."""
    try:
        captures = RunDirectory(directory).captures()
    except RidgelineError:
        return None
    raised = [capture for capture in captures if capture.ended == "raised"]
    return next(iter((*raised, *captures)), None)


def _read(
    directory: Path, plan: Plan, ended: Ended, began_ns: int, memory: FamilyMemory
) -> Outcome:
    wall_s = ended.wall_ns / 1e9
    try:
        trial = msgspec.msgpack.decode((directory / RESULT).read_bytes(), type=Trial)
        steps = [step for step in RunDirectory(directory).steps() if _counts(step, plan)]
    except (OSError, msgspec.DecodeError, RidgelineError) as error:
        failure = because(TrialFailure.RECORD_DAMAGED, error=str(error))
        if isinstance(error, OSError):
            capture = _last_capture(directory)
            has_torch = capture is None or capture.torch_imported
            failure = because(TrialFailure.NO_RECORD if has_torch else TrialFailure.NO_TORCH)
        return Outcome(failure=failure, last_lines=ended.last_lines, wall_s=wall_s)
    capture = _last_capture(directory)
    # The peak of a rank's own process is not that of the launcher.
    own = 0 if directory.name == RANKS else trial.own_peak_bytes
    host_peak = memory.peak_bytes(own, trial.others_bytes)
    return Outcome(
        trial=replace(
            _timed(
                trial, steps, plan, training_loader(capture.loaders if capture is not None else ())
            ),
            later=later_steps(trial, steps),
            handed={},
            queued={},
            system_share=capture.system_share if capture is not None else None,
            peak_bytes=trial.peak_bytes or host_peak or ended.peak_rss_bytes,
            compile_s=sum(step.compile_ns for step in steps) / 1e9,
            first_step_s=(steps[0].start_ns + steps[0].dur_ns - began_ns) / 1e9 if steps else 0.0,
            ended=trial.ended or _ended_early(len(steps), plan),
            problems=(*trial.problems, *(capture.problems if capture is not None else ())),
        ),
        last_lines=ended.last_lines,
        wall_s=wall_s,
    )


def _counts(step: Step, plan: Plan) -> bool:
    """Return whether a step counts. In a program that trains, calls before the first backward (of a
    policy, of a cell) are not steps."""
    return not plan.trains or step.backwards > 0 or step.optimizer_steps > 0 or step.skipped


def _timed(trial: Trial, steps: list[Step], plan: Plan, loader: LoaderSeen) -> Trial:
    """Return the trial with the times of the steps that show how fast the program is."""
    timed = [step for step in steps[plan.watch + 1 :] if is_timed(step, trial)]
    timed = timed[: steps_before_last_batch([step.index for step in timed], trial.queue)]
    on_device = are_on_device(timed)
    waits = [_input_share([step], on_device) or 0.0 for step in timed]
    begin = max(
        made_ahead(loader.workers, loader.prefetch_factor),
        first_steady_step(waits, loader.workers),
    )
    timed = timed[min(begin, len(timed) // 2) :]
    return replace(
        sustained_times(trial, timed, loader.workers, on_device),
        input_share=_input_share(timed, on_device),
    )


def are_on_device(steps: Sequence[Step]) -> bool:
    """Return whether the device's clock timed all these steps."""
    return bool(steps) and all(step.device_ns for step in steps)


def sustained_times(trial: Trial, timed: Sequence[Step], workers: int, on_device: bool) -> Trial:
    """Return the trial with the times and samples of these steps, as they are in the long run, by
    the device's clock or by the host's."""
    step_ns = [(step.device_ns or 0) if on_device else step.dur_ns for step in timed]
    queue = {queued.step: queued for queued in trial.queue}
    is_known = not workers and not on_device and all(s.index in trial.queued for s in timed)
    return replace(
        trial,
        queued_ns=tuple(min(trial.queued[s.index], s.dur_ns) for s in timed) if is_known else (),
        step_ns=as_sustained(step_ns, [queue.get(step.index) for step in timed], workers),
        samples=tuple(step.samples or None for step in timed),
    )


def _input_share(steps: Sequence[Step], on_device: bool) -> float | None:
    """Return the share of the steps spent waiting for input; on a device, the exposed share."""
    detailed = [step for step in steps if step.detailed]
    whole = sum((step.device_ns or 0) if on_device else step.dur_ns for step in detailed)
    waits = sum((step.device if on_device else step.host).get("input", 0) for step in detailed)
    return waits / whole if whole else None


def _ended_early(steps: int, plan: Plan) -> str:
    if steps >= plan.steps:
        return ""
    return (
        f"the program ended after {plural(steps, 'step')}"
        if steps
        else ("the program took no step")
    )
