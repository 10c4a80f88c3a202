"""Optimizes a program: diagnoses it, tries fixes, and writes those that are kept into its
source."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rule import registered as rules
from ridgeline.errors import RidgelineError, TargetError
from ridgeline.fixes.fix import registered as fixes
from ridgeline.harness.race.race_process import RaceProcess
from ridgeline.measure.clock import Deadline
from ridgeline.optimization.agenda import SearchSettings
from ridgeline.optimization.bench import Feeding, ProgramBench
from ridgeline.optimization.candidates import Candidate, asked, attention_edits, candidates
from ridgeline.optimization.diagnosis import Diagnosis, diagnose, run_and_diagnose
from ridgeline.optimization.kept_trials import KeptTrials, identity
from ridgeline.optimization.ladder import Ladder
from ridgeline.optimization.launcher import (
    launcher_command,
    module_file,
    named_file,
    script_of,
    with_script,
)
from ridgeline.optimization.measure import MEASURES
from ridgeline.optimization.patching import write, write_diff
from ridgeline.optimization.race import Race, Standing
from ridgeline.optimization.race_search import Racing
from ridgeline.optimization.search import Progress
from ridgeline.records.finding import Finding
from ridgeline.records.ground import Ground
from ridgeline.records.optimized import Goal, Optimized, TimeSpent, Written
from ridgeline.records.race import RacePlan
from ridgeline.records.run import Target, training_loader
from ridgeline.records.trial import Asked, Plan, Trial
from ridgeline.report.reasons import explain, verdict_sentence
from ridgeline.report.views.findings import gain_text

WATCHED_STEPS = 8
MIN_TRIAL_STEPS, MAX_TRIAL_STEPS = 24, 60
"""Steps of a trial, watched ones included in the minimum."""
TRIAL_S = 3.0
"""Time of the timed steps of a trial. A longer trial tells no more."""
AHEAD_STEPS = 16
"""Further steps of a trial with a loader: batches that its workers have made ahead are not
timed."""
LONG_STEP_S, LONG_STEPS_TRIAL = 1.0, 16
"""Steps that take longer make shorter trials, watched steps included: few of them vary little, and
a trial of 40 steps of 3 s would take most of the usual budget."""
MAX_UNFED_SHARE = 0.02
"""A loader without workers that takes less of the step makes nothing ahead worth waiting for."""
WRITING_S = 3.0
"""Time reserved for writing copies and reports, but no more than `MAX_WRITING_SHARE` of the budget.
"""
MAX_WRITING_SHARE = 0.05
LOOK_TRIALS = 2.0
"""What diagnosing the patched copy takes, in trials of it."""
MAX_PROBLEMS = 5
MIN_ADVISED_PCT = 1.0
"""A finding that costs a smaller part of the step is not worth advice."""
NAMING_THEIR_FIX = frozenset({"decoding-without-cache", "gradients-in-inference"})
"""Rules whose findings name a fix only where one helps: `generate` can be given a cache from
outside, a loop that was written by hand cannot."""
MAX_INLINE_CODE = 100
"""Longest code, in characters, that is shown within a line of text."""


class OptimizeSettings(Struct, frozen=True, kw_only=True):
    search: SearchSettings = SearchSettings()
    budget_s: float = 300.0
    """Time limit for diagnosis, search, confirmation, the copy and its check together."""
    began_s: float | None = None
    """When the call began, by the monotonic clock; None stands for now."""
    seed: int = 0
    again: bool = False
    """Whether everything is measured again, whatever an earlier call has kept."""
    write: bool = True
    """Whether copies of the source are written."""


def optimize(
    target: Target, settings: OptimizeSettings, folder: Path, progress: Progress
) -> Optimized:
    """Optimize a program within its budget. `folder` has what is kept between calls, and is usually
    `.ridgeline`."""
    whole = Deadline(settings.budget_s, began_s=settings.began_s)
    deadline = whole.less(min(WRITING_S, MAX_WRITING_SHARE * settings.budget_s))
    home = folder / "optimize" / identity(target)
    progress.doing("diagnosing the program")
    diagnosis = diagnose(
        target, folder / "runs", home, again=settings.again, limit_s=deadline.left_s()
    )
    diagnosed_s = whole.spent_s()
    if settings.search.goal == "energy" and diagnosis.ground.device != "cuda":
        raise TargetError(
            "--goal energy: only a GPU tells how much energy it takes, and this program uses none",
            "--goal speed: what takes less time takes less energy, as a rule",
        )
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as scratch:
        bench, ladder = _ladder(
            target, settings, diagnosis, home, Path(scratch), deadline, progress
        )
        optimized = ladder.climb(launcher_command(target) or diagnosis.summary.command)
        proven_s = whole.spent_s()
        written, afterwards = None, ""
        if optimized.total is not None and settings.write:
            written = _write_into_source(target, optimized, bench, ladder)
            afterwards = _diagnose_copy(target, written, folder / "runs", bench, ladder)
    summary, varies = diagnosis.summary, ladder.search.judge.varies()
    noted = [explain(reason) for reason in (bench.outdated, varies) if reason is not None]
    return replace(
        optimized, afterwards=afterwards, device=summary.device, trials=bench.taken,
        remembered=bench.remembered, written=written,
        advice=advice(diagnosis.findings), diagnosis=verdict_sentence(summary.verdict),
        run=diagnosis.directory.path.name,
        problems=problems([*summary.problems, *noted], _decisive_trials(ladder)),
        spent_s=whole.spent_s(),
        time=TimeSpent(
            diagnosing_s=diagnosed_s, racing_s=ladder.raced_s,
            proving_s=proven_s - diagnosed_s - ladder.raced_s,
            writing_s=whole.spent_s() - proven_s,
        ),
    )  # fmt: skip


def _ladder(
    target: Target, settings: OptimizeSettings, diagnosis: Diagnosis, home: Path, scratch: Path,
    deadline: Deadline, progress: Progress,
) -> tuple[ProgramBench, Ladder]:  # fmt: skip
    edits, no_attention = attention_edits(diagnosis.findings)
    ground = diagnosis.ground
    plan, feeding = trial_plan(
        ground, diagnosis.step_ms, goal=settings.search.goal, seed=settings.seed
    )
    if settings.again:
        shutil.rmtree(home / "trials", ignore_errors=True)
    bench = ProgramBench(
        target, scratch, plan, deadline=deadline, functions={"sdpa": edits},
        kept=KeptTrials(home / "trials"), feeding=feeding,
    )  # fmt: skip

    def ask(kept: Sequence[Asked], standing: Standing | None = None) -> list[Candidate]:
        now = ladder.search.ground_now(ground, standing)
        return [
            replace(one, unable=no_attention) if no_attention and one.fix.id == "sdpa" else one
            for one in candidates(now, diagnosis.findings, goal=settings.search.goal, kept=kept)
        ]

    def make_race(left_s: Callable[[], float]) -> Race:
        race_plan = RacePlan(seed=settings.seed, trains=ground.trains, functions=edits)
        return Race(lambda: RaceProcess(target, race_plan, scratch / "race"), left_s, bench.left_s)

    can_race = settings.search.goal == "speed" and ground.ranks <= 1
    racing = Racing(make_race, bench.take_compiled, plan.steps) if can_race else None
    ladder = Ladder(bench, ask, settings.search, progress, racing)
    return bench, ladder


def trial_plan(ground: Ground, step_ms: float, *, goal: Goal, seed: int) -> tuple[Plan, Feeding]:
    """Return the plan of a trial of the baseline, and what feeds it."""
    loader = training_loader(ground.loaders)
    timed = round(1e3 * TRIAL_S / (step_ms or 1.0))
    is_long = step_ms > 1e3 * LONG_STEP_S
    unfed = is_long and not loader.workers and ground.input_share < MAX_UNFED_SHARE
    ahead = AHEAD_STEPS if ground.loaders and not unfed else 0
    least = (LONG_STEPS_TRIAL if is_long else MIN_TRIAL_STEPS) - WATCHED_STEPS
    plan = Plan(
        seed=seed, watch=WATCHED_STEPS, trains=ground.trains,
        steps=WATCHED_STEPS + ahead + min(max(timed, least), MAX_TRIAL_STEPS),
        least_s=MEASURES[goal].min_s,
    )  # fmt: skip
    feeding = Feeding(
        workers=loader.workers, prefetch=loader.prefetch_factor, ahead=ahead,
        max_more=timed if ground.loaders else 0,
    )  # fmt: skip
    return plan, feeding


def _write_into_source(
    target: Target, optimized: Optimized, bench: ProgramBench, ladder: Ladder
) -> Written | None:
    """Write a copy beside the script, and run it by itself. For a module of a package write a diff
    alone: other modules of the package would import the module and not its copy."""
    script, module = script_of(target), module_file(target)
    if script is not None:
        ladder.search.doing("writing the fixes into a copy of the source, and running it")
        return _write_copy(script, optimized, bench, ladder)
    return write_diff(module, named_file(target), optimized) if module is not None else None


def _write_copy(
    script: Target, optimized: Optimized, bench: ProgramBench, ladder: Ladder
) -> Written | None:
    search = ladder.search
    kept = asked(search.kept)
    try:
        like = search.history.latest(kept)
        return write(script, optimized, bench, search.judge.baseline, like, kept)
    except KeyboardInterrupt:  # what was proven is reported all the same
        return None
    except Exception as error:
        return Written(checked=f"no copy was written: {type(error).__name__}: {error}"[:300])


def _diagnose_copy(
    target: Target, written: Written | None, runs: Path, bench: ProgramBench, ladder: Ladder
) -> str:
    """Return what holds the copy back; "" if it does not do what the trials did, or if there is no
    time to look."""
    kept = asked(ladder.search.kept)
    left_s = bench.left_s()
    if written is None or not written.agrees or left_s < LOOK_TRIALS * bench.cost_s(kept):
        return ""
    ladder.search.doing("diagnosing the copy")
    try:
        copy = with_script(target, written.files[0])
        found = run_and_diagnose(copy, runs, left_s, compiled=bench.compiled(kept))
    except (RidgelineError, KeyboardInterrupt):  # it is more than was asked for
        return ""
    return verdict_sentence(found.summary.verdict)


def _decisive_trials(ladder: Ladder) -> list[Trial]:
    """Return the trials that the answer rests on: of the baseline, and of all that was kept."""
    search = ladder.search
    whole = search.history.latest(asked(search.kept)) if search.kept else None
    return [*search.judge.baseline, *([whole] if whole is not None else [])]


def problems(noted: Sequence[str], trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return what went wrong in the diagnosis and in trials, each problem once."""
    every = [*noted, *(text for trial in trials for text in trial.problems)]
    distinct = [text for text in dict.fromkeys(every) if text]
    more = len(distinct) - MAX_PROBLEMS
    return (*distinct[:MAX_PROBLEMS], *([f"{more} more of the kind"] if more > 0 else []))


def advice(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return a line for each finding that no fix answers, the most valuable first, for the author
    of the program. Waits for the device are among them: whether a number is needed at every step is
    known to its author alone."""
    answered = {rule for one in fixes() for rule in one.fix.answers}
    known = {one.rule.id: one.rule for one in rules()}
    open_findings = [
        f
        for f in findings
        if (f.rule not in answered or (f.rule in NAMING_THEIR_FIX and not f.fix))
        and f.share_pct >= MIN_ADVISED_PCT
    ]
    return tuple(dict.fromkeys(_line(one, known.get(one.rule)) for one in open_findings))


def _line(finding: Finding, rule: Rule | None) -> str:
    place = f"{finding.place} " if finding.file else ""
    words = _first_sentence(rule.text.fix) if rule is not None else ""
    code = _inline_code(finding.change)
    advised = f"{words}: {code}" if words and code else words or code
    if not advised and finding.docs:
        advised = f"see {finding.docs}"
    claim = f"{place}{finding.claim.rstrip('.')}" + (f": {advised}" if advised else "")
    return f"{claim} ({gain_text(finding)})"


def _first_sentence(fix: str) -> str:
    """Return the first sentence of a rule's text, "" if it begins with code."""
    opening = fix.strip().partition("\n\n")[0].replace("\n", " ")
    if opening.startswith("```"):
        return ""
    sentence = opening.partition(". ")[0].rstrip(".:")
    return sentence[:1].lower() + sentence[1:]


def _inline_code(fix: str) -> str:
    """Return the code of a fix if it is so short that it fits into a line of text, else ""."""
    lines = [line.partition("  #")[0].rstrip() for line in fix.splitlines()]
    code = [line for line in lines if line and not line.lstrip().startswith("#")]
    plain = all(line == line.lstrip() and not line.endswith((":", "(", "[", "{")) for line in code)
    joined = "; ".join(code)
    return f"`{joined}`" if code and plain and len(joined) <= MAX_INLINE_CODE else ""
