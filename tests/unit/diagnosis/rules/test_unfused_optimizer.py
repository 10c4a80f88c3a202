"""An optimizer's update, by tensor, all at once, or fused."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rules.optimizers import unfused_optimizer as look
from ridgeline.diagnosis.rules.python_loops import metrics_by_tensor
from ridgeline.records.machine import Ceiling, Device
from ridgeline.records.sites import OpSite
from tests.unit.diagnosis.rules.made_up_launch import captured, case, gradients, site

SOURCE = """import torch
def main():
    model = network()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, foreach=False)
    for x in data:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
"""
CHAIN = ("mul_", "lerp_", "addcmul_", "sqrt", "addcdiv_")


def chain(calls: float = 100, ms: float = 3.0) -> list[OpSite]:
    return [site(op, calls, ms, phase="optimizer") for op in CHAIN]


def test_update_by_tensor_is_found_where_the_optimizer_is_made() -> None:
    asked = captured(foreach="False", fused="None")
    (one,) = look(case([*chain(), *gradients()], source=SOURCE, capture=asked))
    assert "one parameter at a time: 500 operator calls a step for 100 parameters" in one.claim
    assert one.place == "train.py:4"
    assert one.function == "main"
    assert one.share_pct == pytest.approx(20, abs=0.5)  # all of the optimizer
    assert one.fix == "fused-optimizer"
    assert one.change.endswith(
        "AdamW(\n    model.parameters(), lr=1e-3, foreach=False, fused=True)"
    )
    assert one.confidence == "high"


def test_other_optimizers_are_told_of_foreach() -> None:
    asked = captured("RMSprop", foreach="False")
    (one,) = look(case([*chain(), *gradients()], capture=asked))
    assert "foreach=True" in one.change
    assert one.place == "train.py:9"  # where it steps: no source


def test_without_a_run_the_trace_tells() -> None:
    (one,) = look(case([*chain(ms=6.0), *gradients()], kind="trace", gpu=True, busy=0.5))
    assert one.confidence == "medium"
    assert one.share_pct > 5
    assert "Adam" not in one.change.split("#")[0]  # which one it is, nobody has said
    assert one.claim.startswith("The optimizer")


def test_without_a_run_the_source_names_the_optimizer() -> None:
    ops = [*chain(ms=6.0), *gradients()]
    text = SOURCE.replace("AdamW", "SGD")
    (one,) = look(case(ops, kind="trace", gpu=True, source=text))
    assert one.claim.startswith("SGD updates one parameter at a time")
    assert "optim.SGD(" in one.change
    assert one.place == "train.py:4"
    text = text.replace("foreach=False", "fused=True")  # not the one that was traced
    (one,) = look(case(ops, kind="trace", gpu=True, source=text))
    assert one.claim.startswith("The optimizer")


def test_without_a_run_the_mark_of_its_step_names_the_optimizer() -> None:
    alone = case([*chain(ms=6.0), *gradients()], kind="trace", gpu=True)
    (one,) = look(replace(alone, sites=replace(alone.sites, optimizer="SGD")))
    assert one.claim.startswith("SGD updates one parameter at a time")
    assert "torch.optim.SGD(model.parameters(), …, fused=True)" in one.change
    (own,) = look(replace(alone, sites=replace(alone.sites, optimizer="Lion")))
    assert own.claim.startswith("Lion")
    assert "torch.optim.Lion" not in own.change


def test_of_several_ranks_the_phases_are_not_added_up() -> None:
    alone = case([*chain(ms=2.0), *gradients()], kind="trace", gpu=True, busy=0.3)
    (one,) = look(alone)
    assert alone.study is not None
    summed = tuple(replace(phase, host_ns=8 * phase.host_ns) for phase in alone.study.phases)
    eight = replace(alone, study=replace(alone.study, phases=summed))
    (same,) = look(eight)
    assert same.share_pct == one.share_pct <= 20


def large(*names: str) -> list[OpSite]:
    """An update of 40 large parameters: 250 µs a kernel."""
    return [site(op, 40, 1.0, phase="optimizer", device_ms=10.0) for op in names]


def test_passes_over_memory_stay_where_no_fused_update_is() -> None:
    ops = [*large("lerp_", "square_", "mean", "rsqrt_", "mul_", "add_"), *gradients(40)]
    asked = captured("Adafactor", foreach="False")
    (one,) = look(case(ops, gpu=True, busy=0.95, capture=asked))
    assert one.share_pct < 10  # not the 60 % that its kernels take
    assert "foreach=True" in one.change
    assert "memory" in one.doubt
    assert not [
        *look(case(ops, gpu=True, busy=0.95, capture=captured("Adafactor", foreach="None")))
    ]
    unnamed = [*look(case(ops, gpu=True, busy=0.95, kind="trace"))]
    assert all(f.share_pct < 10 and "foreach=True" in f.change for f in unnamed)


def test_of_a_fused_update_a_third_of_the_passes_stays() -> None:
    ops = [*large("mul_", "lerp_", "addcmul_", "sqrt", "addcdiv_", "div_"), *gradients(40)]
    (one,) = look(case(ops, gpu=True, busy=0.95, kind="trace"))
    assert 38 <= one.share_pct <= 46  # of 60 %


def test_foreach_operators_of_what_has_no_fused_update_are_silent() -> None:
    ops = [site(f"_foreach_{op}", 1, 0.1, phase="optimizer", device_ms=8.0) for op in CHAIN]
    for asked in (captured("RMSprop", foreach="None"), captured("RMSprop", foreach="True")):
        assert not [*look(case([*ops, *gradients()], gpu=True, busy=0.95, capture=asked))]


def test_torchs_defaults_are_a_fault_only_where_they_cost_much() -> None:
    left = captured(foreach="None", fused="None")
    parts = {"forward": 0.5, "backward": 0.41, "optimizer": 0.09}
    assert not [*look(case([*chain(), *gradients()], capture=left, shares=parts))]
    parts = {"forward": 0.3, "backward": 0.3, "optimizer": 0.4}
    assert [*look(case([*chain(), *gradients()], capture=left, shares=parts))]


def test_the_default_update_of_a_small_model_is_reported_where_torch_has_a_fused_one() -> None:
    """Adam over the ten parameters of a variational autoencoder: 1.35 of 3.31 ms."""
    parts = {"forward": 0.3, "backward": 0.3, "optimizer": 0.4}
    ops = [*chain(calls=10, ms=8.0), *gradients(10)]
    (one,) = look(case(ops, source=SOURCE, capture=captured(foreach="None"), shares=parts))
    assert "fused=True" in one.change
    assert 20 < one.share_pct < 40
    assert one.gain_bound >= 1 / (1 - 0.4)
    others = captured("RMSprop", foreach="None")
    assert not [*look(case(ops, source=SOURCE, capture=others, shares=parts))]


def test_the_default_update_is_reported_from_a_tenth_of_the_step_on() -> None:
    """A small autoencoder on a CPU: 18 % of the step could be saved; fusing gained 6 to 20 %."""
    left = captured(foreach="None", fused="None")
    parts = {"forward": 0.4, "backward": 0.42, "optimizer": 0.18}
    (one,) = look(case([*chain(), *gradients()], source=SOURCE, capture=left, shares=parts))
    assert "fused=True" in one.change
    assert 10 < one.share_pct < 20
    others = captured("RMSprop", foreach="None")
    ops = [*chain(calls=300), *gradients(300)]
    assert not [*look(case(ops, source=SOURCE, capture=others, shares=parts))]


def test_a_fused_update_leaves_no_more_than_its_part_of_the_passes() -> None:
    """The model lies in the cache: its bytes at the memory's rate would take longer than now."""
    asked = captured(foreach="False")
    held = replace(asked.modules[0], parameter_bytes=10**9)
    told = case([*chain(calls=20, ms=4.0), *gradients(20)], capture=replace(asked, modules=(held,)))
    rate = Ceiling(quantity="copy", value=1e10, unit="B/s", source="measured")
    device = Device(kind="cpu", index=0, name="a processor", memory_bytes=0, ceilings=(rate,))
    (one,) = look(replace(told, device=device))
    assert one.share_pct > 10


def test_fused_and_few_parameters_are_silent() -> None:
    fused = [site("_fused_adamw_", 1, 5.0, phase="optimizer"), *gradients()]
    assert not [*look(case(fused, capture=captured(fused="True")))]
    few = [*chain(calls=2, ms=0.1), *gradients(2)]
    assert not [*look(case(few, capture=captured(foreach="False")))]


def test_foreach_on_a_gpu_counts_when_it_is_much_of_the_step() -> None:
    ops = [site(f"_foreach_{op}", 1, 0.1, phase="optimizer", device_ms=8.0) for op in CHAIN]
    (one,) = look(case([*ops, *gradients()], gpu=True, busy=0.95, capture=captured(foreach="None")))
    assert "is not fused: 5 passes" in one.claim
    assert one.share_pct == pytest.approx(40 * 0.65)
    small = [site("_foreach_add_", 2, 0.1, phase="optimizer", device_ms=3.0), *gradients()]
    assert not [*look(case(small, gpu=True, busy=0.95, capture=captured(foreach="None")))]


def test_an_update_written_by_hand_is_found_at_its_loop() -> None:
    source = """def main():
    for x in data:
        model(x).sum().backward()
        for p in model.parameters():
            p -= 0.1 * p.grad
"""
    ops = [site(op, 100, 4.0, at=("main", 2)) for op in ("mul", "sub_")]
    whole = case([*ops, *gradients()], source=source)
    (one,) = look(whole)
    assert one.place == "train.py:4"
    assert "_foreach_add_" in one.change
    assert not [*metrics_by_tensor(whole)]


def test_an_optimizer_of_the_programs_own_is_not_given_torchs_options() -> None:
    (one,) = look(case([*chain(), *gradients()], source=SOURCE, capture=captured("Lion")))
    assert "torch.optim.Lion" not in one.change
    assert not [*look(case([*chain(), *gradients()], capture=captured("LBFGS")))]


def test_collectives_one_a_gradient_are_not_an_update() -> None:
    source = """def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
"""
    ops = [site("c10d::allreduce_", 100, 20.0, at=("average", 1), dims=()), *gradients()]
    whole = case(ops, source=source)
    assert not [*look(whole)]
    assert not [*metrics_by_tensor(whole)]
