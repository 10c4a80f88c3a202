"""few-workers: workers that cannot keep up beside idle processors."""

from msgspec.structs import replace

from ridgeline.diagnosis.rules.loader_faults import few_workers as look
from tests.unit.diagnosis.rules.made_up_input import FILE, LOADER, PARSE, READ, case, line, view

BUSY = view(line(PARSE, "parse", 0.9), workers=2)


def test_names_the_number_that_would_do_at_the_loader() -> None:
    """Two workers busy all the time make a batch in 100 ms; training alone takes 50."""
    (finding,) = look(case(workers=2, used=1.0, worker_cores=2.0, python=BUSY))
    assert finding.claim == "Training waits 50 % of each step for 2 workers: 5 would keep up"
    assert finding.place == f"{FILE}:{LOADER}"
    assert "num_workers=5" in finding.change
    assert "worker_init_fn=prepare" in finding.change
    assert (finding.gain_bound, finding.confidence) == (2.222, "high")


def test_no_more_than_there_are_processors() -> None:
    (finding,) = look(case(workers=2, cores=4, used=0.5, worker_cores=2.0, python=BUSY))
    assert "num_workers=4" in finding.change


def test_workers_that_wait_for_storage_may_be_more_than_processors() -> None:
    seen = view(line(READ, "Records.__getitem__", 0.9), workers=1)
    (finding,) = look(case(0.7, workers=1, cores=2, used=1.9, worker_cores=0.1, python=seen))
    assert "num_workers=4" in finding.change


def test_a_sleeping_dataset_on_two_cores_is_not_given_dozens_of_workers() -> None:
    """40 workers would keep up, but each is a process of its own: four for each core are enough."""
    seen = view(line(READ, "Records.__getitem__", 0.9), workers=1)
    (finding,) = look(case(0.97, workers=1, cores=2, used=1.9, worker_cores=0.1, python=seen))
    assert "num_workers=8" in finding.change
    assert "8 would shorten the wait" in finding.claim
    (advised,) = [e for e in finding.evidence if e.what == "workers advised"]
    assert advised.value == 8
    assert "40 would keep up" in advised.text
    assert "2 processors" in advised.text


def test_full_processors_are_not_its_own() -> None:
    assert not [*look(case(workers=2, cores=2, used=0.3, worker_cores=1.7, python=BUSY))]


def test_processors_taken_by_others_do_not_count_as_waiting() -> None:
    """Workers off the processor because other programs have it: more of them would not help."""
    taken = case(workers=2, cores=4, used=0.2, worker_cores=0.4, others=3.4, python=BUSY)
    assert not [*look(taken)]


def test_a_fed_device_and_a_loader_without_workers_are_silent() -> None:
    assert not [*look(case(0.01, workers=2, used=1.0, worker_cores=1.0, python=BUSY))]
    assert not [*look(case(workers=0, used=1.0))]


def test_workers_idle_most_of_the_time_are_enough() -> None:
    """The wait has another reason: five of six batches lie ready."""
    idle = view(line(PARSE, "parse", 0.9), workers=2, idle=0.9)
    assert not [*look(case(0.05, workers=2, used=1.0, worker_cores=0.2, python=idle))]


def test_the_loader_that_fed_the_steps_is_named_though_another_gave_more_batches() -> None:
    told = case(workers=2, used=1.0, worker_cores=2.0, python=BUSY)
    assert told.capture is not None
    (seen,) = told.capture.loaders
    training = replace(seen, training_batches=46, made=(f"{FILE}:{LOADER}:<module>",))
    evaluation = replace(seen, workers=0, batches=900, made=(f"{FILE}:{LOADER - 1}:<module>",))
    capture = replace(told.capture, loaders=(evaluation, training))
    (finding,) = look(replace(told, capture=capture))
    assert "2 workers" in finding.claim
    assert finding.place == f"{FILE}:{LOADER}"


def test_the_gain_is_bounded_by_the_workers_that_are_advised() -> None:
    (finding,) = look(case(0.97, workers=2, cores=4, used=0.5, worker_cores=2.0, python=BUSY))
    assert "num_workers=4" in finding.change
    assert 2.0 < finding.gain_bound < 3.0
