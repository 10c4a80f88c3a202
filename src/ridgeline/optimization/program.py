"""A program optimized: diagnosed first, then its changes tried, then written into its source."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rule import registered as rules
from ridgeline.errors import RidgelineError, TargetError
from ridgeline.fixes.fix import registered as fixes
from ridgeline.measure.deadline import Deadline
from ridgeline.optimization.agenda import Wants
from ridgeline.optimization.bench import Fed, ProgramBench
from ridgeline.optimization.candidates import Candidate, asked, candidates, rewritten
from ridgeline.optimization.diagnosis import Diagnosed, diagnosed, looked_at
from ridgeline.optimization.kept_trials import KeptTrials, identity
from ridgeline.optimization.ladder import Ladder
from ridgeline.optimization.launcher import (
    module_file,
    named_file,
    script_of,
    typed,
    with_script,
)
from ridgeline.optimization.measure import MEASURES
from ridgeline.optimization.patching import write, write_diff
from ridgeline.optimization.search import Voice
from ridgeline.records.facts import because
from ridgeline.records.finding import Finding
from ridgeline.records.optimized import Optimized, SearchCode, Written
from ridgeline.records.run import Target, feeding
from ridgeline.records.trial import Asked, Plan, Trial
from ridgeline.report.reasons import verdict_sentence
from ridgeline.report.views.findings import gain_text

LEAST_STEPS, MOST_STEPS = 24, 60
"""Of a trial: eight watched, and enough to time."""
TRIAL_S = 3.0
"""Of timed steps: longer ones tell no more."""
WATCHED = 8
AHEAD = 16
"""More where there is a loader: the batches its workers have made ahead are not timed."""
WRITING_S = 3.0
"""Time reserved for writing copies and reports, but no more than `MAX_WRITING_SHARE` of the budget.
"""
MAX_WRITING_SHARE = 0.05
LOOKING = 2.0
"""Times a trial of the copy: what looking at it takes."""
MOST_PROBLEMS = 5
NO_REFERENCE = "no float64 reference"


class Wishes(Struct, frozen=True, kw_only=True):
    wants: Wants = Wants()
    budget_s: float = 600.0
    """Time limit for diagnosis, search, confirmation, the copy and its check together."""
    began_s: float | None = None
    """When the call began, by the monotonic clock; None stands for now."""
    seed: int = 0
    again: bool = False
    """Measure everything again, whatever an earlier call has kept."""
    write: bool = True
    """Copies of the source."""


def optimize(target: Target, wishes: Wishes, folder: Path, voice: Voice) -> Optimized:
    """`folder`: of what is kept between calls, `.ridgeline` as a rule."""
    whole = Deadline(wishes.budget_s, began_s=wishes.began_s)
    deadline = whole.less(min(WRITING_S, MAX_WRITING_SHARE * wishes.budget_s))
    home = folder / "optimize" / identity(target)
    voice.say("looking at the program as it is")
    known = diagnosed(target, folder / "runs", home, again=wishes.again, limit_s=deadline.left_s())
    if wishes.wants.goal == "energy" and known.ground.device != "cuda":
        raise TargetError(
            "--goal energy: only a GPU tells how much energy it takes, and this program uses none",
            "--goal speed: what takes less time takes less energy, as a rule",
        )
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as scratch:
        bench, ladder = _ladder(target, wishes, known, home, Path(scratch), deadline, voice)
        found = ladder.climb(typed(target) or known.summary.command)
        written, afterwards = None, ""
        if found.total is not None and wishes.write:
            written = _in_source(target, found, bench, ladder)
            afterwards = _afterwards(target, written, folder / "runs", bench, ladder, known)
    return replace(
        found, afterwards=afterwards, device=known.summary.device, trials=bench.taken,
        remembered=bench.remembered, written=written,
        advice=advice(known.findings), diagnosis=verdict_sentence(known.summary.verdict),
        run=known.directory.path.name,
        problems=problems(
            [*known.summary.problems, bench.forgot, ladder.search.judge.varies()],
            _rests_on(ladder),
        ),
        spent_s=whole.spent_s(),
    )  # fmt: skip


def _ladder(
    target: Target, wishes: Wishes, known: Diagnosed, home: Path, scratch: Path,
    deadline: Deadline, voice: Voice,
) -> tuple[ProgramBench, Ladder]:  # fmt: skip
    edits, why = rewritten(known.findings)
    plan = Plan(
        seed=wishes.seed, steps=_steps(known), watch=WATCHED, trains=known.ground.trains,
        least_s=MEASURES[wishes.wants.goal].least_s,
    )  # fmt: skip
    if wishes.again:
        shutil.rmtree(home / "trials", ignore_errors=True)
    trials = KeptTrials(home / "trials")
    bench = ProgramBench(
        target, scratch, plan, deadline=deadline, functions={"sdpa": edits}, kept=trials,
        fed=_fed(known),
    )  # fmt: skip

    def ask(kept: Sequence[Asked]) -> list[Candidate]:
        share = max(ladder.search.waits_for_input, known.ground.input_share)
        system = ladder.search.system_share
        system = known.ground.system_share if system is None else system
        ground = replace(known.ground, input_share=share, system_share=system)
        found = candidates(ground, known.findings, goal=wishes.wants.goal, kept=kept)
        return [
            replace(one, unable=because(SearchCode.CANNOT_HELP, detail=why))
            if why and one.fix.id == "sdpa"
            else one
            for one in found
        ]

    ladder = Ladder(bench, ask, wishes.wants, voice)
    return bench, ladder


def _in_source(
    target: Target, found: Optimized, bench: ProgramBench, ladder: Ladder
) -> Written | None:
    """A copy beside the script, run by itself; of a package's module a diff alone: what else the
    package holds would look for the module and not for its copy."""
    script, module = script_of(target), module_file(target)
    if script is not None:
        ladder.search.say("writing it into a copy of the source, and running that")
        return _written(script, found, bench, ladder)
    return write_diff(module, named_file(target), found) if module is not None else None


def _written(
    target: Target, found: Optimized, bench: ProgramBench, ladder: Ladder
) -> Written | None:
    try:
        search = ladder.search
        kept = asked(search.kept)
        return write(target, found, bench, search.judge.baseline, search.arms.latest(kept), kept)
    except KeyboardInterrupt:  # what was proven is reported all the same
        return None
    except Exception as error:
        return Written(checked=f"no copy was written: {type(error).__name__}: {error}"[:300])


def _afterwards(
    target: Target, written: Written | None, runs: Path, bench: ProgramBench, ladder: Ladder,
    known: Diagnosed,
) -> str:  # fmt: skip
    """What holds the copy back, where it does what the trials did and there is time to look."""
    kept = asked(ladder.search.kept)
    left_s = bench.left_s() - known.concluding_s
    if written is None or not written.agrees or left_s < LOOKING * bench.cost_s(kept):
        return ""
    ladder.search.say("looking at what holds it back now")
    try:
        copy = with_script(target, written.files[0])
        found = looked_at(copy, runs, left_s, compiled=bench.compiled(kept))
    except (RidgelineError, KeyboardInterrupt):  # it is more than was asked for
        return ""
    return verdict_sentence(found.summary.verdict)


def _rests_on(ladder: Ladder) -> list[Trial]:
    """What the answer rests on: the unchanged program, and all that was kept."""
    search = ladder.search
    whole = search.arms.latest(asked(search.kept)) if search.kept else None
    return [*search.judge.baseline, *([whole] if whole is not None else [])]


def problems(diagnosis: Sequence[str], trials: Sequence[Trial]) -> tuple[str, ...]:
    """Each once. That there is no float64 reference is said among the checks of results."""
    said = [*diagnosis, *(text for trial in trials for text in trial.problems)]
    noted = [text for text in dict.fromkeys(said) if text and not text.startswith(NO_REFERENCE)]
    more = len(noted) - MOST_PROBLEMS
    return (*noted[:MOST_PROBLEMS], *([f"{more} more of the kind"] if more > 0 else []))


def _fed(known: Diagnosed) -> Fed:
    loader = feeding(known.ground.loaders)
    most = round(1e3 * TRIAL_S / (known.summary.step.median_ms or 1.0))
    return Fed(
        workers=loader.workers, prefetch=loader.prefetch_factor,
        ahead=AHEAD if known.ground.loaders else 0, most=most if known.ground.loaders else 0,
    )  # fmt: skip


def _steps(known: Diagnosed) -> int:
    wanted = round(1e3 * TRIAL_S / (known.summary.step.median_ms or 1.0))
    ahead = AHEAD if known.ground.loaders else 0
    return WATCHED + ahead + min(max(wanted, LEAST_STEPS - WATCHED), MOST_STEPS)


LEAST_PCT = 1.0
"""Of the step: less cannot be seen in a trial either."""
LONGEST = 100
"""Characters of code that are still read in a line of text."""


def advice(findings: Sequence[Finding]) -> tuple[str, ...]:
    """The most valuable first, as the findings are."""
    answered = {rule for one in fixes() for rule in one.fix.answers}
    known = {one.rule.id: one.rule for one in rules()}
    open_ = [f for f in findings if f.rule not in answered and f.share_pct >= LEAST_PCT]
    return tuple(dict.fromkeys(_line(one, known.get(one.rule)) for one in open_))


def _line(finding: Finding, rule: Rule | None) -> str:
    place = f"{finding.place} " if finding.file else ""
    what = _in_words(rule.text.fix) if rule is not None else ""
    code = _in_code(finding.change)
    wanted = f"{what}: {code}" if what and code else what or code
    if not wanted and finding.docs:
        wanted = f"see {finding.docs}"
    said = f"{place}{finding.claim.rstrip('.')}" + (f": {wanted}" if wanted else "")
    return f"{said} ({gain_text(finding)})"


def _in_words(fix: str) -> str:
    """The first sentence of a rule's fix, where it begins with one."""
    opening = fix.strip().partition("\n\n")[0].replace("\n", " ")
    if opening.startswith("```"):
        return ""
    sentence = opening.partition(". ")[0].rstrip(".:")
    return sentence[:1].lower() + sentence[1:]


def _in_code(fix: str) -> str:
    """The fix, where it is so short that it can stand in a line."""
    lines = [line.partition("  #")[0].rstrip() for line in fix.splitlines()]
    code = [line for line in lines if line and not line.lstrip().startswith("#")]
    plain = all(line == line.lstrip() and not line.endswith((":", "(", "[", "{")) for line in code)
    joined = "; ".join(code)
    return f"`{joined}`" if code and plain and len(joined) <= LONGEST else ""
