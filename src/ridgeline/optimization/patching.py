"""What was kept, written into copies of the user's files, and a diff of the files themselves."""

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
from ridgeline.optimization.measure import timed, typical_ms
from ridgeline.records.edit import Edit, Keyword, Patched
from ridgeline.records.facts import because
from ridgeline.records.optimized import Optimized, SearchCode, Total, Written
from ridgeline.records.parity import MEANS, Alters, Parity
from ridgeline.records.run import Target
from ridgeline.records.trial import Applied, Asked, Trial
from ridgeline.report.reasons import explain
from ridgeline.source.editing import copies, patched, write_copy, write_text
from ridgeline.source.editing.copies import Copies, free, signed
from ridgeline.source.editing.patching import by_hand
from ridgeline.source.program import ProgramTexts

HALF = 0.5
"""Of the gain, in logarithms: one process by itself against the middle of several differs by a few
per cent, a change that is not there by all it brings."""
SLOWER = 1.2
"""Times the trial's time, where that was kept for something else than speed: memory."""
WAVERS = 1.1
"""Times as slow as the trials' interval, and one process may still be one of them."""


def copy_is_doubtful(total: Total, outcome: Outcome) -> bool:
    """The copy ran slower than the trials let expect: that, or the machine was busy just then. Run
    again it tells: a change that is not there is not there either time."""
    return outcome.trial is not None and timed(outcome.trial) and _slower(total, outcome.trial)


def agreement(
    total: Total,
    outcomes: Sequence[Outcome],
    missing: Sequence[str],
    baseline: Sequence[Trial],
    like: Trial | None,
) -> tuple[str, bool]:
    """A sentence, and whether it is as fast and computes the same. `outcomes`: of the copy, run
    once, or again where that was doubtful; `missing`: changes the copy has not."""
    ran = [one.trial for one in outcomes if one.trial is not None and timed(one.trial)]
    if not ran:
        failure = outcomes[0].failure or because(SearchCode.TOO_FEW_STEPS)
        return f"the copy does not run as the program did: {explain(failure)}", False
    tried = _tried(total)
    said = ["by itself: " + ", run again ".join(_speed(total, one) for one in ran)]
    parity, whose = _parity(total, ran[0], baseline, like)
    if parity is not None:
        said.append(_results(parity, whose))
    fast = max(_gain(total, one) for one in ran) >= (tried**HALF if tried > 1 else tried / SLOWER)
    if missing:
        titles = ", ".join(find_fix(fix).fix.title for fix in dict.fromkeys(missing))
        said.append(f"without what is to be written by hand ({titles}): {tried:.2f} × with it")
    elif not fast:
        said.append(f"the trial reached {tried:.2f} ×: the copy is not what was tried")
    elif all(_slower(total, one) for one in ran):
        said.append(f"the trials reached {tried:.2f} ×, {units.seconds(total.after_ms / 1e3)}")
    same = parity is None or parity.equality in ("equal", "weak")
    return "; ".join(said), fast and same and not missing


def _tried(total: Total) -> float:
    return total.before_ms / total.after_ms if total.after_ms else 1.0


def _gain(total: Total, trial: Trial) -> float:
    alone = typical_ms((trial,))
    return total.before_ms / alone if alone else 0.0


def _slower(total: Total, trial: Trial) -> bool:
    low = total.ratio.ci_low / total.ratio.value
    return _gain(total, trial) < _tried(total) * low / WAVERS


def _speed(total: Total, trial: Trial) -> str:
    alone = typical_ms((trial,))
    return f"{_gain(total, trial):.2f} ×, {units.seconds(alone / 1e3)} a step"


def _results(parity: Parity, whose: str) -> str:
    named = {check.what for check in parity.checks}
    what = "losses" if named & {"losses", MEANS} else "results"
    if parity.equality in ("equal", "weak"):
        like = "like" if MEANS in named else "equal to"
        weak = "" if parity.equality == "equal" else f" ({parity.why})"
        return f"{what} {like} {whose}{weak}"
    return f"{what} {'differ' if parity.equality == 'differs' else 'unknown'}: {parity.why}"


def _parity(
    total: Total, trial: Trial, baseline: Sequence[Trial], like: Trial | None
) -> tuple[Parity | None, str]:
    """Against the trial first, which drew the same random numbers where it was compiled; then
    against the unchanged program, whose own variation is known. And whose results these were."""
    fixes = [find_fix(one.fix).fix for one in total.applied]
    most, lowest = alters(fixes), precision(fixes)
    found, whose = None, "the trial's"
    if like is not None:
        # what alters semantics altered the trial's as well: the copy must still do what it did
        known: Alters = "rounding" if most == "semantics" else most
        found = compare([like], trial, known, lowest)
    if baseline and (found is None or found.equality in ("differs", "unknown")):
        plain = compare(baseline, trial, most, lowest)
        if found is None or plain.equality in ("equal", "weak"):
            found, whose = plain, "the unchanged program's"
    return found, whose


class Planned(Struct, frozen=True, kw_only=True):
    """The edits of a change. All or none, save keywords: each of those stands for itself."""

    fix: str
    edits: tuple[tuple[Path, Edit], ...]

    @property
    def whole(self) -> bool:
        return not all(isinstance(edit, Keyword) for _, edit in self.edits)


class Patches(Struct, frozen=True, kw_only=True):
    files: tuple[Patched, ...] = ()
    """The user's own files as they would be; nothing is written to them."""
    by_hand: tuple[str, ...] = ()
    """What could not be edited safely: what to write where."""
    missing: tuple[str, ...] = ()
    """Changes of which that is true."""
    planned: tuple[Planned, ...] = ()
    """What is written."""

    def edits(self) -> dict[Path, list[Edit]]:
        return _by_file(self.planned)


def patches(script: Path, applied: Sequence[Applied]) -> Patches:
    """Of the files the changes were put on; global settings go into the script."""
    source = ProgramTexts(script)
    planned: list[Planned] = []
    words: dict[str, list[str]] = {}
    # autocast last: what is put before the model's call must stand before its `with`, too
    for one in sorted(applied, key=lambda one: find_fix(one.fix).fix.slot == "precision"):
        try:
            edits = of_framework(one, source)
            if edits is None:
                edits = find_fix(one.fix).source_edits(one, source)
        except EditByHand as why:
            words.setdefault(one.fix, []).append(str(why))
            continue
        except Exception as error:  # of one change: the others are written all the same
            why_not = f"{one.what}: it could not be written ({type(error).__name__}: {error})"
            words.setdefault(one.fix, []).append(why_not)
            continue
        paths = [(Path(edit.file or script).resolve(), edit) for edit in edits]
        planned.append(Planned(fix=one.fix, edits=tuple(paths)))
    done = _carried_out(planned, words)
    missing = [one.fix for one in applied if one.fix in words]
    said = [line for fix in missing for line in words[fix]]
    return Patches(
        files=tuple(file for file in done if file.done),
        by_hand=tuple(dict.fromkeys(said)),
        missing=tuple(dict.fromkeys(missing)),
        planned=tuple(planned),
    )


def _carried_out(planned: list[Planned], words: dict[str, list[str]]) -> list[Patched]:
    """Until none is refused; a change one of whose edits is, is left out of `planned`."""
    while True:
        done = [
            patched(_shown(path), path.read_bytes(), edits)
            for path, edits in _by_file(planned).items()
        ]
        refused = {one.edit: (one, file.file) for file in done for one in file.refused}
        if not refused:
            return done
        for one in list(planned):
            mine = [edit for _, edit in one.edits if edit in refused]
            if not mine:
                continue
            why = dict.fromkeys(refused[edit][0].why for edit in mine)
            left = [
                (path, edit) for path, edit in one.edits if not one.whole and edit not in refused
            ]
            gone = [pair for pair in one.edits if pair not in left]
            says = [by_hand(edit, _shown(path)) for path, edit in gone]
            words.setdefault(one.fix, []).append(f"{'; '.join(why)}: {'; '.join(says)}")
            planned.remove(one)
            if left:
                planned.append(replace(one, edits=tuple(left)))


def write(
    target: Target,
    found: Optimized,
    bench: Bench,
    baseline: Sequence[Trial] = (),
    like: Trial | None = None,
    kept: tuple[Asked, ...] = (),
) -> Written:
    """The copies beside the originals, a diff, and what the patched program does by itself.
    `baseline`: trials of the unchanged program; `like`: one with all that was `kept`."""
    assert found.total is not None
    script = Path(target.name)
    made = patches(script, found.total.applied)
    diff = "".join(file.diff for file in made.files)
    try:
        laid = copies(script, made.edits())
        files = _written(laid)
        diff_file = _write_diff(script, diff)
    except RidgelineError as error:
        return Written(diff=diff, by_hand=made.by_hand, checked=str(error))
    missing = [*made.missing, *_in(made.planned, [file for file, _ in laid.left])]
    said = [
        f"the changes of {file} are in no copy: {why}. Put them into the file itself: "
        f"patch -p0 < {diff_file}"
        for file, why in laid.left
    ]
    written = Written(
        files=tuple(files), diff=diff, diff_file=diff_file,
        by_hand=(*made.by_hand, *said), notes=laid.said,
    )  # fmt: skip
    if not files:
        return written
    ran = _by_itself(files[0], kept, found.total, bench, once=bool(missing))
    if not ran:  # the copies stay
        return replace(written, checked="the copy was not run: interrupted")
    if ran[0].cut:
        return replace(written, checked="the copy was not run to its end: too little time was left")
    sentence, agrees = agreement(found.total, ran, missing, baseline, like)
    return replace(written, checked=sentence, agrees=agrees)


def _by_itself(
    script: str, kept: tuple[Asked, ...], total: Total, bench: Bench, *, once: bool
) -> list[Outcome]:
    """Again where the first time is doubtful, if there is time for another like it, which finds
    compiled what that has compiled."""
    ran: list[Outcome] = []
    try:
        ran.append(bench.by_itself(script, kept))
        first = ran[0]
        takes_s = first.wall_s - (first.trial.compile_s if first.trial is not None else 0.0)
        if not once and copy_is_doubtful(total, first) and takes_s < bench.left_s():
            again = bench.by_itself(script, kept)
            ran += [] if again.cut else [again]
    except KeyboardInterrupt:
        pass
    return ran


def write_diff(module: Path, named: Path, found: Optimized) -> Written:
    """Write a diff of the user's own files, for the user to apply. Nothing is copied and nothing is
    run. `named` is the file after which the diff is named."""
    assert found.total is not None
    made = patches(module, found.total.applied)
    diff = "".join(file.diff for file in made.files)
    try:
        diff_file = _write_diff(named, diff)
    except RidgelineError as error:
        return Written(diff=diff, by_hand=made.by_hand, checked=str(error))
    said = f"a module is not copied: apply the diff with patch -p0 < {diff_file}"
    return Written(
        diff=diff, diff_file=diff_file, by_hand=made.by_hand, checked=said if diff_file else ""
    )


def _written(laid: Copies) -> list[str]:
    for one in laid.made:
        write_copy(one.patched, one.to, overwrite=True)
    return [str(one.to) for one in laid.made]


def _write_diff(script: Path, diff: str) -> str:
    """Beside the script; where a file of the user's has the name, the next number."""
    if not diff:
        return ""
    to = free(script.with_suffix(".diff"), [])
    write_text(signed(diff), to)
    return str(to)


def _in(planned: Sequence[Planned], files: Sequence[str]) -> list[str]:
    """Changes with an edit in one of those files."""
    left = {Path(file).resolve() for file in files}
    return [one.fix for one in planned if any(path in left for path, _ in one.edits)]


def _by_file(planned: Sequence[Planned]) -> dict[Path, list[Edit]]:
    found: dict[Path, list[Edit]] = {}
    for one in planned:
        for path, edit in one.edits:
            edits = found.setdefault(path, [])
            if edit not in edits:
                edits.append(edit)
    return found


def _shown(path: Path) -> str:
    """From where the command was given: a diff's names, and what a person reads."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd().resolve()) else str(path)
