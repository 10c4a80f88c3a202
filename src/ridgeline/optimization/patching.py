"""Writes what was kept into copies of the user's files and into a diff, and checks that a copy does
by itself what the trials did."""

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ridgeline import units
from ridgeline.equality.trials.parity import compare
from ridgeline.errors import RidgelineError
from ridgeline.fixes.fix import EditByHand, find_fix
from ridgeline.fixes.framework import of_framework
from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.bench import Bench
from ridgeline.optimization.candidates import alters, precision
from ridgeline.optimization.measure import is_timed, typical_ms
from ridgeline.records.edit import Edit, Keyword, Patched
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import Optimized, SearchCode, Total, Written
from ridgeline.records.parity import MEANS, Alters, Parity
from ridgeline.records.reason_codes import ByHand
from ridgeline.records.run import Target
from ridgeline.records.trial import Applied, Asked, Trial
from ridgeline.report.reasons import explain
from ridgeline.source.editing import copies, patched, write_copy, write_text
from ridgeline.source.editing.copies import free, signed
from ridgeline.source.editing.patching import by_hand
from ridgeline.source.program import ProgramTexts

MIN_LOG_GAIN_SHARE = 0.5
"""Share of the trials' gain, in logarithms, that the copy must reach. One process by itself differs
from the middle of several by a few per cent, and a fix that is missing by all that it brings."""
MAX_SLOWDOWN = 1.2
"""A fix that was kept for something other than speed, such as memory, may take this many times the
trial's time in the copy."""
MAX_DEVIATION = 1.1
"""One process that is this many times slower than the trials' interval may still be one of them."""


class CopyCheck(Struct, frozen=True):
    """Says whether the copy does by itself what the trials with the fixes did."""

    total: Total
    baseline: Sequence[Trial] = ()
    """Trials of the unchanged program."""
    like: Trial | None = None
    """A trial with all fixes."""

    def is_slower(self, outcome: Outcome) -> bool:
        """Return whether the copy ran slower than the trials let expect. If so it is run again,
        because the machine may have been busy; a missing fix is missing both times."""
        trial = outcome.trial
        return trial is not None and is_timed(trial) and self._is_slow(trial)

    def judged(self, outcomes: Sequence[Outcome], missing: Sequence[str]) -> tuple[str, bool]:
        """Return a sentence, and whether the copy is as fast and computes the same. `outcomes` has
        one or two runs of the copy, `missing` the fixes that it does not have."""
        trials = [one.trial for one in outcomes if one.trial is not None and is_timed(one.trial)]
        if not trials:
            failure = outcomes[0].failure or because(SearchCode.TOO_FEW_STEPS)
            return f"the copy does not run as the program did: {explain(failure)}", False
        expected = self._expected
        parts = ["by itself: " + ", run again ".join(map(self._speed, trials))]
        parity, whose = self._parity(trials[0])
        if parity is not None:
            parts.append(_results(parity, whose))
        needed = expected**MIN_LOG_GAIN_SHARE if expected > 1 else expected / MAX_SLOWDOWN
        fast = max(map(self._gain, trials)) >= needed
        if missing:
            titles = ", ".join(find_fix(fix).fix.title for fix in dict.fromkeys(missing))
            parts.append(
                f"without what is to be written by hand ({titles}): {expected:.2f} × with it"
            )
        elif not fast:
            parts.append(f"the trial reached {expected:.2f} ×: the copy is not what was tried")
        elif all(map(self._is_slow, trials)):
            seconds = units.seconds(self.total.after_ms / 1e3)
            parts.append(f"the trials reached {expected:.2f} ×, {seconds}")
        same = parity is None or parity.is_proven
        return "; ".join(parts), fast and same and not missing

    @property
    def _expected(self) -> float:
        return self.total.before_ms / self.total.after_ms if self.total.after_ms else 1.0

    def _gain(self, trial: Trial) -> float:
        step_ms = typical_ms((trial,))
        return self.total.before_ms / step_ms if step_ms else 0.0

    def _is_slow(self, trial: Trial) -> bool:
        low = self.total.ratio.ci_low / self.total.ratio.value
        return self._gain(trial) < self._expected * low / MAX_DEVIATION

    def _speed(self, trial: Trial) -> str:
        return f"{self._gain(trial):.2f} ×, {units.seconds(typical_ms((trial,)) / 1e3)} a step"

    def _parity(self, trial: Trial) -> tuple[Parity | None, str]:
        """Compare the copy with the trial first, which drew the same random numbers where it was
        compiled, and then with the baseline, whose own variation is known. Return the verdict, and
        whose results these were."""
        fixes = [find_fix(one.fix).fix for one in self.total.applied]
        most, lowest = alters(fixes), precision(fixes)
        parity, whose = None, "the trial's"
        if self.like is not None:
            # A fix that alters semantics altered the trial too: the copy must still do the same.
            known: Alters = "rounding" if most == "semantics" else most
            parity = compare([self.like], trial, known, lowest)
        if self.baseline and (parity is None or not parity.is_proven):
            plain = compare(self.baseline, trial, most, lowest)
            if parity is None or plain.is_proven:
                parity, whose = plain, "the unchanged program's"
        return parity, whose


def _results(parity: Parity, whose: str) -> str:
    checks = {check.what for check in parity.checks}
    what = "losses" if checks & {"losses", MEANS} else "results"
    if parity.is_proven:
        like = "like" if MEANS in checks else "equal to"
        weak = "" if parity.equality == "equal" else f" ({parity.why})"
        return f"{what} {like} {whose}{weak}"
    return f"{what} {'differ' if parity.equality == 'differs' else 'unknown'}: {parity.why}"


class Planned(Struct, frozen=True, kw_only=True):
    """The edits of a fix. They are made all or none, but each keyword argument stands for
    itself."""

    fix: str
    edits: tuple[tuple[Path, Edit], ...]

    @property
    def all_or_none(self) -> bool:
        return not all(isinstance(edit, Keyword) for _, edit in self.edits)


class Patches(Struct, frozen=True, kw_only=True):
    files: tuple[Patched, ...] = ()
    """The user's files as they would be; nothing is written to them."""
    by_hand: tuple[Reason, ...] = ()
    """For what could not be edited safely: what to write where."""
    missing: tuple[str, ...] = ()
    """Fixes that are to be written by hand."""
    planned: tuple[Planned, ...] = ()

    def edits(self) -> dict[Path, list[Edit]]:
        return _by_file(self.planned)


def patches(script: Path, applied: Sequence[Applied]) -> Patches:
    """Return what the fixes change in the files where they were applied; global settings go into
    the script."""
    source = ProgramTexts(script)
    planned: list[Planned] = []
    instructions: dict[str, list[Reason]] = {}
    """What to write by hand, by fix."""
    # Autocast comes last: what is put before the model's call must stand before its `with`, too.
    for one in sorted(applied, key=lambda one: find_fix(one.fix).fix.slot == "precision"):
        try:
            edits = of_framework(one, source)
            if edits is None:
                edits = find_fix(one.fix).source_edits(one, source)
        except EditByHand as error:
            instructions.setdefault(one.fix, []).append(error.reason)
            continue
        except Exception as error:  # the other fixes are written all the same
            text, title = f"{type(error).__name__}: {error}", find_fix(one.fix).fix.title
            reason = because(ByHand.WRITER_FAILED, title=title, error=text)
            instructions.setdefault(one.fix, []).append(reason)
            continue
        paths = [(Path(edit.file or script).resolve(), edit) for edit in edits]
        planned.append(Planned(fix=one.fix, edits=tuple(paths)))
    files = _patch(planned, instructions)
    missing = dict.fromkeys(one.fix for one in applied if one.fix in instructions)
    return Patches(
        files=tuple(file for file in files if file.done),
        by_hand=tuple(reason for fix in missing for reason in instructions[fix]),
        missing=tuple(missing),
        planned=tuple(planned),
    )


def _patch(planned: list[Planned], instructions: dict[str, list[Reason]]) -> list[Patched]:
    """Patch the files again until no edit is refused. A fix with a refused edit is taken out of
    `planned`, and `instructions` says what to write instead."""
    while True:
        files = [
            patched(_shown(path), path.read_bytes(), edits)
            for path, edits in _by_file(planned).items()
        ]
        refused = {one.edit: one.reason for file in files for one in file.refused}
        if not refused:
            return files
        for one in list(planned):
            if not any(edit in refused for _, edit in one.edits):
                continue
            left = [
                (path, edit)
                for path, edit in one.edits
                if not one.all_or_none and edit not in refused
            ]
            instructions.setdefault(one.fix, []).extend(
                refused.get(edit) or by_hand(edit, _shown(path))
                for path, edit in one.edits
                if (path, edit) not in left
            )
            planned.remove(one)
            if left:
                planned.append(replace(one, edits=tuple(left)))


def write(
    target: Target,
    optimized: Optimized,
    bench: Bench,
    baseline: Sequence[Trial] = (),
    like: Trial | None = None,
    kept: tuple[Asked, ...] = (),
) -> Written:
    """Write copies beside the originals and a diff, and run the patched program by itself.
    `baseline` has trials of the unchanged program, and `like` is one with all that was `kept`."""
    assert optimized.total is not None
    script = Path(target.name)
    made = patches(script, optimized.total.applied)
    diff = "".join(file.diff for file in made.files)
    try:
        laid = copies(script, made.edits())
        for one in laid.made:
            write_copy(one.patched, one.to, overwrite=True)
        diff_file = _write_diff(script, diff)
    except RidgelineError as error:
        return Written(diff=diff, by_hand=made.by_hand, checked=str(error))
    without_copy = {Path(file).resolve() for file, _ in laid.left}
    missing = [
        *made.missing,
        *(one.fix for one in made.planned if any(path in without_copy for path, _ in one.edits)),
    ]
    unwritten = (
        because(ByHand.FILE_NOT_COPIED, cause=why, file=str(file), diff_file=diff_file)
        for file, why in laid.left
    )
    written = Written(
        files=tuple(str(one.to) for one in laid.made), diff=diff, diff_file=diff_file,
        by_hand=(*made.by_hand, *unwritten), notes=laid.taken,
    )  # fmt: skip
    if not written.files:
        return written
    check = CopyCheck(optimized.total, baseline, like)
    ran = _run_copy(written.files[0], kept, check, bench, once=bool(missing))
    if not ran:  # the copies stay
        return replace(written, checked="the copy was not run: interrupted")
    if ran[0].cut:
        return replace(written, checked="the copy was not run to its end: too little time was left")
    sentence, agrees = check.judged(ran, missing)
    return replace(written, checked=sentence, agrees=agrees)


def _run_copy(
    script: str, kept: tuple[Asked, ...], check: CopyCheck, bench: Bench, *, once: bool
) -> list[Outcome]:
    """Run the copy; run it again if it was slower than expected and there is time. The second run
    finds what the first has compiled."""
    ran: list[Outcome] = []
    try:
        ran.append(bench.by_itself(script, kept))
        first = ran[0]
        takes_s = first.wall_s - (first.trial.compile_s if first.trial is not None else 0.0)
        if not once and check.is_slower(first) and takes_s < bench.left_s():
            again = bench.by_itself(script, kept)
            ran += [] if again.cut else [again]
    except KeyboardInterrupt:
        pass
    return ran


def write_diff(module: Path, named: Path, optimized: Optimized) -> Written:
    """Write a diff of the user's own files, for the user to apply. Nothing is copied and nothing is
    run. `named` is the file after which the diff is named."""
    assert optimized.total is not None
    made = patches(module, optimized.total.applied)
    diff = "".join(file.diff for file in made.files)
    try:
        diff_file = _write_diff(named, diff)
    except RidgelineError as error:
        return Written(diff=diff, by_hand=made.by_hand, checked=str(error))
    hint = f"a module is not copied: apply the diff with patch -p0 < {diff_file}"
    return Written(
        diff=diff, diff_file=diff_file, by_hand=made.by_hand, checked=hint if diff_file else ""
    )


def _write_diff(script: Path, diff: str) -> str:
    """Write the diff beside the script, under a name that no file of the user's has."""
    if not diff:
        return ""
    to = free(script.with_suffix(".diff"), [])
    write_text(signed(diff), to)
    return str(to)


def _by_file(planned: Sequence[Planned]) -> dict[Path, list[Edit]]:
    edits_by_file: dict[Path, list[Edit]] = {}
    for one in planned:
        for path, edit in one.edits:
            edits = edits_by_file.setdefault(path, [])
            if edit not in edits:
                edits.append(edit)
    return edits_by_file


def _shown(path: Path) -> str:
    """Return the path from where the command was given, for a diff and for a person."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd().resolve()) else str(path)
