"""Many small kernels, and graphs of them."""

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._launch import bound_ahead, held_back
from ridgeline.diagnosis.rules.small_launches import cuda_graph_candidate, small_kernels
from ridgeline.records.run_summary import SyncPoint, Telemetered
from ridgeline.records.sites import OpSite, SyncSite
from ridgeline.records.trace import Launch
from tests.unit.diagnosis.rules.made_up_launch import captured, case, gradients, site

SOURCE = """import torch
def squash(x):
    return x
def main():
    model = build()
    for x in data:
        loss = model(x).sum()
"""


def kernels(calls: float = 1.0, at: tuple[str, int] = ("squash", 2), each_us: float = 4.0,
            ) -> list[OpSite]:  # fmt: skip
    return [
        site("mul", calls, 0.1, at=at, module=f"B_{i}", device_ms=calls * each_us / 1e3,
             dims=((64 + i, 8),))
        for i in range(400)
    ]  # fmt: skip


def test_sizes_that_change_make_small_kernels_of_one_function() -> None:
    whole = case(kernels(1 / 3), gpu=True, busy=0.3, source=SOURCE)
    (one,) = small_kernels(whole)
    assert "squash() launches 133 kernels a step, 4 µs each" in one.claim
    assert one.place == "train.py:2"
    assert 20 <= one.share_pct <= 71
    assert "def squash" in one.change
    assert not [*cuda_graph_candidate(whole)]


def test_code_outside_functions_is_named_by_its_file() -> None:
    whole = case(kernels(1 / 3, at=("<module>", 1)), gpu=True, busy=0.3, source=SOURCE)
    (one,) = small_kernels(whole)
    assert one.claim.startswith("The top level of train.py launches 133 kernels a step")
    assert one.function == "<module>"  # a field of findings.json
    assert "<module>" not in one.change
    assert not any("<module>" in each.text for each in one.evidence)


def test_synchronisations_stand_in_the_way_of_a_graph() -> None:
    whole = replace(
        case(kernels(), gpu=True, busy=0.3, source=SOURCE),
        syncs=(SyncPoint(place="train.py:7", call="cudaStreamSynchronize", per_step=30,
                         ms_per_step=1.0),),
    )  # fmt: skip
    assert not [*cuda_graph_candidate(whole)]
    assert [*small_kernels(whole)]


def test_a_busy_device_large_kernels_and_a_full_queue_are_silent() -> None:
    for whole in (
        case(kernels(), gpu=True, busy=0.9, source=SOURCE),
        case(kernels(each_us=50.0), gpu=True, busy=0.3, source=SOURCE),
        case(kernels(), gpu=True, busy=0.3, causes={"input": 0.7}),
        case(kernels()[:20], gpu=True, busy=0.3, source=SOURCE),
    ):
        assert not [*cuda_graph_candidate(whole)]
        assert not [*small_kernels(whole)]
    whole = case(kernels(1 / 3), gpu=True, busy=0.3)
    assert whole.study is not None
    full = replace(whole, study=replace(whole.study, launch=Launch(empty_queue=0.1)))
    assert not [*small_kernels(full)]


def test_what_a_specific_rule_explains_is_not_said_again() -> None:
    chain = [site(op, 100, 16.0, phase="optimizer", device_ms=0.4) for op in
             ("mul_", "lerp_", "addcmul_", "sqrt", "addcdiv_")]  # fmt: skip
    parts = {"forward": 0.1, "backward": 0.1, "optimizer": 0.8}
    whole = case([*kernels(), *chain, *gradients()], gpu=True, busy=0.3, shares=parts,
                 capture=captured(foreach="False"))  # fmt: skip
    assert not [*cuda_graph_candidate(whole)]
    assert not [*small_kernels(whole)]


def test_tracing_and_other_programs_are_not_taken_for_the_program() -> None:
    alone = case(kernels(), gpu=True, busy=0.6, kind="trace")  # untraced it would be busy
    assert not [*cuda_graph_candidate(alone)]
    shared = replace(
        case(kernels(), gpu=True, busy=0.3), telemetered=Telemetered(other_processes=1)
    )
    assert not [*cuda_graph_candidate(shared)]


def test_the_share_is_at_most_the_waiting_and_the_bound_at_most_what_is_idle() -> None:
    # all of the host's time is in squash(): more than the device waits
    for kind in ("run", "trace"):
        whole = case(kernels(1 / 3), gpu=True, busy=0.08, source=SOURCE, kind=kind)
        (one,) = small_kernels(whole)
        waiting, count = one.evidence[0].value, one.evidence[1].text
        assert waiting is not None
        assert one.share_pct <= 100 * waiting + 0.01
        assert one.gain_bound <= 1 / 0.08
        assert "133, 100 % of them under 10 µs; of these 133 in squash()" in count
        assert ("slows the host" in one.doubt) == (kind == "trace")


def waited(whole: Case, waits: float, idle_ms: float = 6.0) -> Case:
    """With so many waits a step; 6 ms of 100 idle after them, as a trace with stacks shows it."""
    one = SyncSite(ops=("aten::item",), call="cudaStreamSynchronize", times=waits, waits=waits,
                   idle_ns=idle_ms * 1e6)  # fmt: skip
    return replace(whole, sites=replace(whole.sites, waits=(one,)))


def test_many_waits_a_step_are_why_the_host_is_not_ahead() -> None:
    alone = case(kernels(), gpu=True, busy=0.3, kind="trace")  # 400 kernels
    assert [*cuda_graph_candidate(alone)]
    held = waited(alone, 32)
    assert held_back(held)
    assert not [*cuda_graph_candidate(held)]
    assert not [*small_kernels(held)]
    assert (bound_ahead(held, 0.06) or 0.0) > 1.5  # launches are hidden then, too


def test_few_waits_or_a_device_with_next_to_no_work_are_not() -> None:
    alone = case(kernels(), gpu=True, busy=0.3, kind="trace")
    for other in (
        waited(alone, 3),  # at the end of a step: the loss, a metric
        waited(alone, 10),  # 40 kernels apart
        waited(alone, 32, idle_ms=0.0),  # the device was done already
        waited(case(kernels(), gpu=True, busy=0.1, kind="trace"), 32),
    ):
        assert not held_back(other)
        assert bound_ahead(other, 0.06) is None
        assert [*cuda_graph_candidate(other)]


def test_idle_time_after_waits_counts_against_the_untraced_waiting() -> None:
    # 12 of 100 ms after one wait, a fifth of the traced waiting, is most of the untraced one
    alone = case(kernels(), gpu=True, busy=0.42, kind="trace")
    assert held_back(waited(alone, 1, idle_ms=12.0))
    run = case(kernels(), gpu=True, busy=0.42)
    assert not held_back(waited(run, 1, idle_ms=12.0))
