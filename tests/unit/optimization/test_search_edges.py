"""What is said and kept where partners are missing, the time ends, or another measure is asked."""

import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.measure.clock import Deadline
from ridgeline.optimization import program
from ridgeline.optimization.agenda import SearchSettings
from ridgeline.optimization.bench import ProgramBench
from ridgeline.optimization.candidates import Candidate, candidates
from ridgeline.optimization.kept_trials import KeptTrials
from ridgeline.optimization.ladder import Ladder
from ridgeline.records.facts import because
from ridgeline.records.ground import Ground
from ridgeline.records.ladder import Ladder as RecordedLadder
from ridgeline.records.optimized import Optimized, SearchCode
from ridgeline.records.reason_codes import Skip, SkipKind
from ridgeline.records.run import LoaderSeen, Target
from ridgeline.records.trial import Asked, Plan, TensorPrint, Trial, TrialFailure, WatchedStep
from ridgeline.report.reasons import explain
from ridgeline.report.views.optimized import untried_kinds
from ridgeline.report.views.optimized_phrases import doubts
from tests.unit.optimization.fake_bench import FakeBench, Speed, candidate, statuses, times


def told(found: Optimized) -> dict[str, tuple[str, str]]:
    return {rung.fix: (rung.status, explain(rung.reason)) for rung in found.rungs}


class Needing(FakeBench):
    """Prefetching finds nothing to change where there are no workers."""

    def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
        names = {one.fix for one in fixes}
        alone = "prefetch" in names and "workers" not in names
        self.missing = {"prefetch": because(Skip.NO_WORKERS)} if alone else {}
        return super().trial(fixes, **given)


class Interrupted(FakeBench):
    last = 0

    def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
        if len(self.ran) == self.last:
            raise KeyboardInterrupt
        return super().trial(fixes, **given)


class Batches(FakeBench):
    """A batch twice as large takes twice as long."""

    def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
        factor = next((int(one.options["factor"]) for one in fixes if one.options), 1)
        self._speed = lambda names: 1 / factor
        return super().trial(fixes, **given)


def test_where_a_partner_finds_nothing_to_change_the_first_is_known_by_itself() -> None:
    bench = FakeBench(times())
    bench.missing["pinned"] = because(Skip.ALREADY_SET, setting="pinned memory")
    found = Ladder(bench, [candidate("copies", together=("pinned",)), candidate("pinned")])
    said = told(found.climb("train.py"))
    assert said["copies"][0] == "rejected"
    assert "×" in said["copies"][1]
    assert said["pinned"] == ("not applied", explain(bench.missing["pinned"]))


def _fed(alone: float, both: float) -> Speed:
    """Threads left to the workers gain nothing by themselves."""
    return lambda names: 1.0 if "workers" not in names else both if "threads" in names else alone


def _workers_with_threads() -> list[Candidate]:
    workers = candidate("workers", together=("threads",))
    return [replace(workers, brings="threads"), candidate("threads")]


def test_what_belongs_together_is_tried_as_one_from_the_first() -> None:
    bench = FakeBench(_fed(alone=1.2, both=1.8))
    found = Ladder(bench, _workers_with_threads()).climb("train.py")
    assert next(names for names in bench.ran if names) == {"workers", "threads"}
    assert found.total is not None
    assert set(found.total.fixes) == {"workers", "threads"}


def test_of_what_was_tried_as_one_the_part_that_is_of_no_use_is_left_out() -> None:
    found = Ladder(FakeBench(_fed(alone=1.8, both=1.8)), _workers_with_threads()).climb("train.py")
    assert statuses(found) == {"workers": "kept", "threads": "dropped"}


def test_what_does_not_pay_together_is_tried_alone() -> None:
    bench = FakeBench(_fed(alone=1.8, both=0.5))
    found = Ladder(bench, _workers_with_threads()).climb("train.py")
    assert next(names for names in bench.ran if names) == {"workers", "threads"}
    assert statuses(found)["workers"] == "kept"
    assert found.total is not None
    assert found.total.fixes == ("workers",)


def test_a_companion_that_finds_nothing_to_change_costs_the_compiler_no_trial() -> None:
    bench = FakeBench(times(graphs=2.0))
    bench.missing["fused"] = because(Skip.ALREADY_FUSED)
    one = candidate("graphs", slot="compile", slow_start=True)
    said = told(Ladder(bench, [one, candidate("fused", usual=True)]).climb("train.py"))
    assert said["graphs"][0] == "kept"
    assert said["fused"] == ("not applied", explain(bench.missing["fused"]))
    assert next(names for names in bench.ran if names) == {"graphs", "fused"}
    assert bench.ran.index(frozenset({"graphs"})) > 5, "first when the whole is confirmed"


def test_what_is_nothing_without_another_is_dropped_with_it() -> None:
    def speed(names: frozenset[str]) -> float:
        fed = 1.56 if "prefetch" in names else 1.3
        if "workers" not in names:
            fed = 1.0
        if "fast" in names:  # its loader is no bottleneck any more, and workers cost cores
            fed = {1.56: 1.0, 1.3: 0.8, 1.0: 1.0}[fed] * 3
        return fed

    bench = Needing(speed)
    ladder = Ladder(bench, [candidate(name) for name in ("workers", "prefetch", "fast")])
    found = ladder.climb("train.py")
    assert {fix: status for fix, (status, _) in told(found).items()} == {
        "workers": "dropped", "prefetch": "dropped", "fast": "kept",
    }  # fmt: skip
    assert told(found)["prefetch"][1] == "it does nothing without WORKERS"
    assert found.total is not None
    assert found.total.fixes == ("fast",)


def test_what_saves_memory_may_take_twice_the_unchanged_step_and_not_twice_each() -> None:
    bench = FakeBench(times(a=0.6, b=0.6), spread=0.001)
    bench.peaks = {"a": 0.5, "b": 0.5}
    found = Ladder(bench, [candidate("a"), candidate("b")], SearchSettings(goal="memory")).climb(
        "train.py"
    )
    assert told(found)["a"][0] == "kept"
    assert told(found)["b"] == ("rejected", "a step takes 2.8 × as long")


def test_one_spared_for_another_says_so_although_that_one_is_dropped_in_the_end() -> None:
    def speed(names: frozenset[str]) -> float:
        return 3.0 if "fast" in names else 1.5 if "graphs" in names else 1.0

    plain = candidate("plain", slot="compile", spare_beside=("graphs",))
    ladder = Ladder(
        FakeBench(speed), [candidate("graphs", slot="compile"), plain, candidate("fast")]
    )
    found = ladder.climb("train.py")
    assert told(found)["graphs"][0] == "dropped"
    assert told(found)["plain"] == ("not tried", "GRAPHS is kept and does more")
    assert not found.stopped


def test_a_change_kept_with_its_last_options_has_no_second_rung() -> None:
    class Workers(FakeBench):
        def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
            known = {one.fix: one.options for one in fixes}
            number = known.get("loader-workers", {}).get("workers", "0")
            self._speed = lambda names: {"0": 1.0, "1": 1.5, "2": 2.5, "4": 3.5}[number]
            return super().trial(fixes, **given)

    loader = LoaderSeen(workers=0, batch_size=8)
    ground = Ground(device="cpu", cores=2, loaders=(loader,), input_share=0.8, trains=True)
    ladder = Ladder(Workers(times()), lambda kept: candidates(ground, (), kept=kept))
    rungs = [one for one in ladder.climb("train.py").rungs if one.fix == "loader-workers"]
    assert {one.options.get("workers"): one.status for one in rungs} == {
        "2": "dropped", "4": "kept", "1": "rejected",
    }  # fmt: skip


def test_a_larger_batch_without_time_is_reported_as_not_tried() -> None:
    batch = replace(candidate("larger-batch", alters="semantics"), options={"factor": "2"})
    found = Ladder(Batches(times(), trials=4), [batch], SearchSettings(batch=True)).climb(
        "train.py"
    )
    assert told(found)["larger-batch"] == ("not tried", "too little time was left")
    assert found.stopped == because(SearchCode.OUT_OF_TIME)


@pytest.mark.parametrize("last", range(1, 40))
def test_an_interrupt_at_any_trial_leaves_figures_that_can_be_read(last: int) -> None:
    bench = Interrupted(times(a=1.5, b=1.2))
    bench.last = last
    ladder = Ladder(
        bench,
        [
            candidate("a"),
            candidate("b"),
            candidate("c", unable=because(Skip.NO_LOADER)),
        ],
    )
    found = ladder.climb("train.py")
    assert {rung.fix for rung in found.rungs} == {"a", "b", "c"}
    assert (0 < found.noise < 1) == (last > 1), "of one process nothing is known"
    assert found.control is None or 0.5 < found.control.ci_low < found.control.ci_high < 2
    kept = {rung.fix for rung in found.rungs if rung.status == "kept"}
    assert kept == {one.fix.id for one in ladder.search.kept}


def test_a_budget_that_is_over_after_one_trial_takes_one() -> None:
    bench = FakeBench(times(a=3.0), trials=0)
    found = Ladder(bench, [candidate("a")]).climb("train.py")
    assert len(bench.ran) == 1
    assert told(found)["a"] == ("not tried", "too little time was left")
    assert found.baseline_ms > 0


def test_a_sample_s_time_is_not_judged_by_how_little_memory_varies() -> None:
    batch = replace(candidate("larger-batch", alters="semantics"), options={"factor": "2"})
    won = 0
    for seed in range(40):
        bench = Batches(times(), spread=0.1, seed=seed)
        found = Ladder(bench, [batch], SearchSettings(goal="memory", batch=True)).climb("train.py")
        won += told(found)["larger-batch"][0] == "kept"
    assert won <= 5  # 12 by the spread of memory


def test_memory_is_not_judged_by_how_much_steps_vary() -> None:
    class Wavering(FakeBench):
        def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
            found = super().trial(fixes, **given)
            assert found.trial is not None
            steps = [round(s * math.exp(self._rng.gauss(0, 0.3))) for s in found.trial.step_ns]
            return replace(found, trial=replace(found.trial, step_ns=tuple(steps)))

    bench = Wavering(times())
    bench.peaks = {"a": 0.9}
    found = Ladder(bench, [candidate("a")], SearchSettings(goal="memory")).climb("train.py")
    assert told(found)["a"][0] == "kept"
    assert len(bench.ran) <= 15  # 33 with the steps' own spread


def test_a_loss_that_broke_is_kept_as_it_was(tmp_path: Path) -> None:
    nan = float("nan")
    tensor = TensorPrint(name="weight", norm=nan, projection=nan, moved=nan, numel=1)
    trial = Trial(watched=(WatchedStep(loss=nan),), tensors=(tensor,))
    KeptTrials(tmp_path).put(Plan(), Outcome(trial=trial))
    found = KeptTrials(tmp_path).take(Plan())
    assert found is not None
    assert found.trial is not None
    loss = found.trial.watched[0].loss
    assert loss is not None
    assert math.isnan(loss)
    assert math.isnan(found.trial.tensors[0].norm)


def test_a_copy_is_compared_with_a_trial_of_all_that_was_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It drew the random numbers that a compiled copy draws; the unchanged program did not."""
    ladder = Ladder(FakeBench(times(a=2.0)), [candidate("a")])
    found = ladder.climb("train.py")
    given: list[Any] = []
    monkeypatch.setattr(program, "write", lambda *told: given.extend(told))
    target = Target(kind="script", name="train.py", arguments=())
    bench = ProgramBench(target, tmp_path, Plan(), deadline=Deadline(math.inf))
    program._write_copy(target, found, bench, ladder)
    assert given[4].fixes == ("a",)


def test_what_fresh_processes_do_not_show_is_not_kept() -> None:
    class Lucky(FakeBench):
        """Better in the trials of the search alone."""

        def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
            self._speed = times(a=1.0 if given.get("fresh") else 1.5)
            return super().trial(fixes, **given)

    ladder = Ladder(Lucky(times()), [candidate("a")])
    found = ladder.climb("train.py")
    status, why = told(found)["a"]
    assert status == "dropped"
    assert why.startswith("not confirmed in fresh processes: ")
    assert found.total is None
    assert not ladder.search.kept


def test_a_fix_that_redraws_is_a_caveat_and_not_exact() -> None:
    stays = candidate("stays", alters="nothing", redraws="the copy shuffles otherwise")
    found = Ladder(FakeBench(times(stays=2.0)), [stays]).climb("train.py")
    assert found.caveats == ("the copy shuffles otherwise",)
    assert "the copy shuffles otherwise" in doubts(RecordedLadder(found))
    exact = Ladder(FakeBench(times(stays=2.0)), [stays], SearchSettings(keep_exact=True)).climb(
        "train.py"
    )
    assert told(exact)["stays"] == ("not tried", "it alters random draws")
    assert not exact.caveats


class Redrawn(FakeBench):
    """Another number in every run, of the data or of the first loss."""

    def __init__(self, field: str, by: float) -> None:
        super().__init__(times())
        self._field, self._by = field, by

    def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
        found = super().trial(fixes, **given)
        assert found.trial is not None
        first, *rest = found.trial.watched
        moved = {self._field: getattr(first, self._field) + self._by * len(self.ran)}
        watched = (replace(first, **moved), *rest)
        return replace(found, trial=replace(found.trial, watched=watched))


@pytest.mark.parametrize(
    ("field", "by", "code"),
    [
        ("batch_sum", 0.5, SearchCode.DATA_VARIES),
        ("loss", 0.3, SearchCode.FIRST_LOSS_VARIES),
        ("loss", 1e-4, None),
    ],
)
def test_a_baseline_that_is_not_seeded_is_reported(
    field: str, by: float, code: SearchCode | None
) -> None:
    ladder = Ladder(Redrawn(field, by), [candidate("a")])
    ladder.climb("train.py")
    reason = ladder.search.judge.varies()
    assert reason == (because(code) if code is not None else None)


def test_a_program_that_runs_once_alone_says_what_may_be_why() -> None:
    class Once(FakeBench):
        def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
            if self.ran:
                return Outcome(
                    failure=because(TrialFailure.RAISED, error="AssertionError: already running")
                )
            return super().trial(fixes, **given)

    found = Ladder(Once(times()), [candidate("a")]).climb("train.py")
    assert found.stopped is not None
    assert found.stopped.code == SearchCode.BASELINE_RUN_FAILED
    assert found.stopped.facts["run"] == 2
    assert "RIDGELINE_TRIAL" in explain(found.stopped)
    assert [kind for kind, _ in untried_kinds(found)] == [SkipKind.PROGRAM_FAILED]


@pytest.mark.parametrize("seed", range(6))
def test_a_lucky_trial_is_not_held_against_the_next_change(seed: int) -> None:
    class Lucky(FakeBench):
        """The trial for which `a` is kept."""

        def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
            lucky = bool(fixes) and not any(self.ran)
            self._speed = times(a=3.2 if lucky else 2.0, b=1.4)
            return super().trial(fixes, **given)

    bench = Lucky(times(), spread=0.05, seed=seed)
    found = Ladder(bench, [candidate("a"), candidate("b")]).climb("train.py")
    assert told(found)["b"][0] == "kept"


def test_of_one_slot_two_are_never_tried_as_one() -> None:
    bench = FakeBench(lambda names: 2.0 if len(names) == 2 else 1.0)
    half = candidate("half", slot="precision", together=("brain",))
    found = Ladder(bench, [half, candidate("brain", slot="precision")]).climb("train.py")
    assert frozenset({"half", "brain"}) not in bench.ran
    assert found.total is None


def test_the_whole_has_as_many_pairs_as_it_needs_and_a_rung_says_what_it_took() -> None:
    pairs = set()
    for seed in range(12):
        bench = FakeBench(times(a=1.06), spread=0.03, seed=seed)
        found = Ladder(bench, [candidate("a")]).climb("train.py")
        assert found.rungs[0].spent_s >= 1.0  # a trial each is a second
        if found.total is not None:
            pairs.add(found.total.ratio.pairs)
    assert max(pairs) == 6
