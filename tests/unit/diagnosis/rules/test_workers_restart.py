"""workers-restart: what the first step of each epoch takes longer."""

from msgspec.structs import replace

from ridgeline.diagnosis.rules.loader_faults import few_workers, loader_starves
from ridgeline.diagnosis.rules.loader_faults import workers_restart as look
from tests.unit.diagnosis.rules.made_up_input import FILE, LOADER, case, steps

BEGUN = (0, 10, 20, 30)


def test_restarts_are_charged_with_what_they_add() -> None:
    """Three of 40 steps (the first is the program's own start) take 300 ms more than 100."""
    made = steps(BEGUN, extra_ms=300)
    (finding,) = look(case(0.2, workers=2, epochs=4, begun=BEGUN, steps=made))
    assert finding.claim.startswith("Each epoch begins with 300 ms of starting 2 workers")
    assert 17 < finding.share_pct < 18.5
    assert finding.place == f"{FILE}:{LOADER}"
    assert finding.confidence == "high"
    assert "persistent_workers=True" in finding.change


def test_its_wait_is_not_charged_to_the_loader_too() -> None:
    told = case(0.18, workers=2, epochs=4, begun=BEGUN, steps=steps(BEGUN, extra_ms=300),
                used=1.0, worker_cores=0.5)  # fmt: skip
    assert not [*loader_starves(told)]
    assert not [*few_workers(told)]


def test_workers_that_stay_are_silent() -> None:
    made = steps(BEGUN, extra_ms=300)
    assert not [*look(case(0.2, workers=2, epochs=4, begun=BEGUN, steps=made, stays=True))]


def test_epochs_that_begin_like_any_step_are_silent() -> None:
    made = steps(BEGUN, extra_ms=10)
    assert not [*look(case(0.02, workers=2, epochs=4, begun=BEGUN, steps=made))]


def test_one_epoch_or_no_workers_is_silent() -> None:
    assert not [*look(case(0.2, workers=2, epochs=1, begun=(0,), steps=steps((0,), 300)))]
    made = steps(BEGUN, extra_ms=300)
    assert not [*look(case(0.2, workers=0, epochs=4, begun=BEGUN, steps=made))]


def test_a_loader_made_anew_in_each_epoch_keeps_no_workers() -> None:
    """persistent_workers does not help: they end with their loader."""
    told = case(0.2, workers=2, stays=True, steps=steps(BEGUN, extra_ms=300))
    assert told.capture is not None
    (loader,) = told.capture.loaders
    each = tuple(replace(loader, begun=(index,)) for index in BEGUN)
    (finding,) = look(replace(told, capture=replace(told.capture, loaders=each)))
    assert finding.claim.endswith("the DataLoader is made anew")
    assert 17 < finding.share_pct < 18.5
    assert "once, before the loop" in finding.change
    assert "for batch in loader:" in finding.change
