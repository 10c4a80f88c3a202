import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rules.communication import sync_in_accumulation as look
from tests.unit.diagnosis.rules.made_up_machine import only
from tests.unit.diagnosis.rules.made_up_ranks import MIB, case, site

SOURCE = """def main():
    for step in range(100):
        for part in parts:
            loss = model(part).mean()
            loss.backward()
        optimizer.step()
"""


def test_gradients_exchanged_after_each_part() -> None:
    held = site(40, calls=8, size=10 * MIB)
    found = only(look(case(held, source=SOURCE, backwards=4, parameters=20 * MIB)))
    assert found.claim.startswith("Gradients are exchanged 4 times a step")
    assert found.place == "train.py:5"
    assert found.share_pct == pytest.approx(30)
    assert found.confidence == "high"
    assert "model.no_sync()" in found.change
    assert "loss.backward()" in found.change


def test_a_sharded_model_accumulates_by_its_own_switch() -> None:
    held = replace(site(40, calls=8, size=10 * MIB), sharding="fsdp2")
    found = only(look(case(held, source=SOURCE, backwards=4, parameters=20 * MIB)))
    assert "set_requires_gradient_sync" in found.change
    assert "no_sync()" not in found.change


def test_a_trace_alone_tells_by_the_number_of_collectives() -> None:
    held = site(40, calls=8, size=None)
    found = only(look(case(held, source=SOURCE, run=False, traced_backwards=4.0)))
    assert found.confidence == "medium"
    assert found.share_pct == pytest.approx(30)


def test_no_sync_is_silent() -> None:
    held = site(10, calls=2, size=10 * MIB)
    assert not [*look(case(held, backwards=4, parameters=20 * MIB))]


def test_no_sync_is_silent_without_sizes() -> None:
    held = site(10, calls=2, size=None)
    assert not [*look(case(held, run=False, traced_backwards=4.0))]


def test_two_models_with_a_backward_each_are_no_accumulation() -> None:
    held = site(40, calls=4, size=10 * MIB)
    assert not [*look(case(held, backwards=2, parameters=40 * MIB))]


def test_silent_with_one_backward() -> None:
    held = site(40, calls=8, size=10 * MIB)
    assert not [*look(case(held, parameters=20 * MIB))]


def test_silent_where_the_exchange_is_hidden() -> None:
    held = site(40, calls=8, size=10 * MIB, exposed=1)
    assert not [*look(case(held, backwards=4, parameters=20 * MIB))]


def test_silent_where_nothing_is_exchanged_in_backward() -> None:
    held = site(40, calls=8, size=10 * MIB, phase="other")
    assert not [*look(case(held, backwards=4, parameters=20 * MIB))]
