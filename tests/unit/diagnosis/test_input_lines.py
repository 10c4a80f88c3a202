"""Samples beneath a loader: the lines that make batches, in whichever process."""

from ridgeline.diagnosis.python_view import python_view
from tests.unit.diagnosis.test_python_view import (
    DATA,
    FETCH,
    FETCH_EACH,
    LOOP,
    TRAIN,
    WAITS,
    main,
    worker,
)

NEXT = (
    f"{TRAIN}:90:<module>",
    f"{DATA}/dataloader.py:700:_BaseDataLoaderIter.__next__",
    f"{DATA}/dataloader.py:800:_SingleProcessDataLoaderIter._next_data",
)
GET = f"{TRAIN}:12:Pictures.__getitem__"
DECODE = f"{TRAIN}:5:decode"
COLLATE = f"{DATA}/_utils/collate.py:275:collate_tensor_fn"


def test_in_the_main_process_only_what_is_beneath_the_loader_counts() -> None:
    view = python_view([
        main(
            ((*NEXT, FETCH, FETCH_EACH, GET, DECODE), 60),
            ((*NEXT, FETCH, FETCH_EACH, GET), 20),
            ((*NEXT, FETCH, COLLATE), 20),
            ((f"{TRAIN}:90:<module>", f"{TRAIN}:40:train"), 300),
        )
    ])  # fmt: skip
    made = view.input
    assert (made.main_samples, made.worker_samples) == (100, 0)
    first = made.lines[0]
    assert (first.line, first.function, first.share, first.process) == (5, "decode", 0.6, "main")
    assert [line.calls for line in made.lines if not line.file] == [
        "torch.utils.data._utils.collate.collate_tensor_fn"
    ]
    assert made.functions == (f"{TRAIN}:Pictures.__getitem__", f"{TRAIN}:decode")


def test_a_worker_that_waits_and_a_program_that_waits_make_nothing() -> None:
    view = python_view([
        worker(0, ((LOOP, *WAITS[2:]), 50), ((LOOP, FETCH, GET, DECODE), 50)),
        main(((f"{TRAIN}:90:<module>", *WAITS), 70)),
    ])  # fmt: skip
    made = view.input
    assert (made.main_samples, made.worker_samples) == (0, 50)
    assert made.lines[0].share == 1.0
    assert made.lines[0].process == "worker"


def test_a_function_that_makes_batches_by_its_name() -> None:
    view = python_view([
        main(
            ((f"{TRAIN}:90:<module>", f"{TRAIN}:20:get_batch", DECODE), 30),
            ((f"{TRAIN}:90:<module>", f"{TRAIN}:40:train"), 70),
        )
    ])  # fmt: skip
    assert view.input.main_samples == 30
    assert view.input.lines[0].function == "decode"


def test_without_a_loader_there_is_nothing() -> None:
    assert python_view([main(((f"{TRAIN}:40:train",), 70))]).input.lines == ()
