"""A larger batch: which loaders get it, which factors are tried, how it is written."""

from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from ridgeline.fixes.catalog import larger_batch
from ridgeline.fixes.fix import EditByHand
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.run import LoaderSeen
from ridgeline.source.editing.patching import patched
from tests.unit.fixes.seams_here import Here, code

DATA = TensorDataset(torch.zeros(1024, 2))


class Split(TensorDataset):
    train = True

    def __init__(self, **said: Any) -> None:
        super().__init__(torch.zeros(1024, 2))
        vars(self).update(said)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(64))


def program(factor: int = 4) -> Here:
    made = Here()
    larger_batch.apply(made, {"factor": str(factor)})
    return made


def test_the_batch_grows_by_the_factor_and_nothing_else_changes() -> None:
    found = program()
    given = {"dataset": DATA, "batch_size": 8, "shuffle": True, "drop_last": True}
    assert found.makes(**given) == {**given, "batch_size": 32}
    assert found.done == [because(Done.LARGER_BATCH, batch_size=32, factor=4, before=8)]


def test_a_loader_that_says_nothing_has_one_sample_a_batch() -> None:
    assert program().makes(dataset=DATA)["batch_size"] == 4


def test_loaders_of_an_evaluation_are_left() -> None:
    found = program()
    assert found.makes(place="a.py:1", dataset=DATA, batch_size=8)["batch_size"] == 32
    assert found.makes(place="a.py:2", dataset=DATA, batch_size=8)["batch_size"] == 8
    sampler = RandomSampler(DATA)
    given = found.makes(place="a.py:3", dataset=DATA, batch_size=8, sampler=sampler)
    assert given["batch_size"] == 32
    assert found.makes(place="a.py:1", dataset=DATA, batch_size=8)["batch_size"] == 32  # epoch 2


@pytest.mark.parametrize("said", [{"train": False}, {"split": "val"}, {"split": "test"}])
def test_a_dataset_that_says_it_is_for_evaluation_is_left(said: dict[str, Any]) -> None:
    found = program()
    assert found.makes(dataset=Split(**said), batch_size=8, shuffle=True)["batch_size"] == 8
    assert code(found.why_not) == Skip.EVALUATION_DATASET
    assert found.makes(dataset=Split(split="train"), batch_size=8)["batch_size"] == 32


def test_batches_of_the_programs_own_are_left() -> None:
    found = program()
    found.makes(dataset=DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 8, False))
    assert code(found.why_not) == Skip.NO_BATCHING
    assert found.makes(dataset=DATA, batch_size=None)["batch_size"] is None
    assert code(found.why_not) == Skip.NO_BATCHING


def test_a_set_too_small_for_it_is_left_and_a_stream_is_not() -> None:
    found = program(16)
    assert found.makes(dataset=DATA, batch_size=8)["batch_size"] == 8
    facts = {"batches": 8, "batch_size": 128, "min_batches": larger_batch.MIN_BATCHES}
    assert found.why_not == Reason(Skip.TOO_FEW_BATCHES_LEFT, facts)
    assert program(16).makes(dataset=Stream(), batch_size=8)["batch_size"] == 128


def test_factors_rise_as_far_as_batches_are_left() -> None:
    ground = Ground(loaders=(LoaderSeen(batch_size=8, length=130),))
    assert [one["factor"] for one in larger_batch.choices(ground)] == ["2", "4", "8"]
    unknown = Ground(loaders=(LoaderSeen(batch_size=8),))
    assert [one["factor"] for one in larger_batch.choices(unknown)][-1] == "32"


def test_a_batch_made_larger_leaves_fewer_of_them() -> None:
    ground = Ground(loaders=(LoaderSeen(batch_size=8, length=130), LoaderSeen()))
    made = larger_batch.after(ground, {"factor": "4"})
    assert [(one.batch_size, one.length) for one in made.loaders] == [(32, 32), (None, None)]
    assert [one["factor"] for one in larger_batch.choices(made)] == ["2"]


def test_able_needs_loaders_that_make_enough_batches() -> None:
    assert code(larger_batch.reason_to_skip(Ground())) == Skip.NO_LOADER
    assert code(larger_batch.reason_to_skip(Ground(loaders=(LoaderSeen(),)))) == Skip.NO_BATCHING
    few = Ground(loaders=(LoaderSeen(batch_size=8, length=20),))
    assert larger_batch.reason_to_skip(few) == because(Skip.TOO_FEW_BATCHES, batches=20)
    assert (
        larger_batch.reason_to_skip(Ground(loaders=(LoaderSeen(batch_size=8, length=64),))) is None
    )


def test_waiting_for_input_does_not_shrink_with_the_batch() -> None:
    assert larger_batch.bound(Ground(input_share=1.0)) == 1
    assert larger_batch.bound(Ground(input_share=0.5)) == pytest.approx(1 / (0.5 + 0.5 / 32))


def written(source: str, *places: str) -> str:
    found = program()
    for place in places or ("train.py:1",):
        found.makes(place=place, dataset=DATA, batch_size=8, shuffle=True)
    edits = larger_batch.source_edits(found.outcome()[0][0], lambda file: source)
    done = patched("train.py", source.encode(), edits)
    assert not done.refused
    return done.text


def test_each_loaders_own_number_is_multiplied() -> None:
    source = "a = DataLoader(x, 8, shuffle=True)\nb = DataLoader(y, batch_size=16)\n"
    text = written(source, "train.py:1", "train.py:2")
    assert "DataLoader(x, 32, shuffle=True)" in text
    assert "DataLoader(y, batch_size=64)" in text
    assert "batch_size=4" in written("a = DataLoader(x)\n")


def test_a_size_that_is_worked_out_elsewhere_is_named() -> None:
    with pytest.raises(EditByHand) as worked_out:
        written("a = DataLoader(x, batch_size=args.batch)\n")
    expression = because(ByHand.SIZE_EXPRESSION, expression="args.batch")
    reason = because(ByHand.BATCH_SIZE, cause=expression, place="train.py:1", factor=4)
    assert worked_out.value.reason == reason
    with pytest.raises(EditByHand) as renamed:
        written("a = make(x)\n")
    assert renamed.value.reason.cause == because(ByHand.SIZE_OF_OTHER_NAME)
