"""Chains of element-wise operators on large tensors."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rule import with_tolerance
from ridgeline.diagnosis.rules.fusable_chain import look
from ridgeline.records.run import Compilation
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from tests.unit.diagnosis.rules.made_up_launch import captured, case, site

SOURCE = """import torch
def gelu(x):
    y = x + 0.0
    return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * x * x * x)))
"""
AT = ("gelu", 2)


def chain(each_ms: float = 0.5, layers: int = 8, device: bool = True) -> list[OpSite]:
    """Five operators forward and ten backward in each layer."""
    made = []
    for i in range(layers):
        ahead, back = {"at": AT, "module": f"B_{i}"}, {"at": AT, "module": f"B_{i}"}
        for op, calls in (("mul", 3.0), ("tanh", 1.0), ("add", 1.0)):
            ms = each_ms * calls
            made.append(site(op, calls, ms, device_ms=ms if device else 0.0, **ahead))  # type: ignore[arg-type]
        ms = each_ms * 10
        made.append(site("mul", 10, ms, phase="backward", device_ms=ms if device else 0.0, **back))  # type: ignore[arg-type]
    return made


def test_chain_is_found_at_its_densest_line() -> None:
    (one,) = look(case(chain(), gpu=True, busy=0.95, source=SOURCE))
    assert "gelu() passes over memory with 5 element-wise operators in a row, 15" in one.claim
    assert one.line == 4
    assert one.share_pct == pytest.approx(60 * (1 - 2 / 15), rel=0.01)
    assert one.change.startswith("@torch.compile\ndef gelu(x)")


def test_on_a_cpu_too() -> None:
    (one,) = look(case(chain(device=False)))
    assert one.line == 2
    assert 40 < one.share_pct < 60


def test_small_tensors_little_time_and_short_chains_are_silent() -> None:
    assert not [*look(case(chain(each_ms=0.005), gpu=True, busy=0.95))]
    assert not [*look(case(chain(each_ms=0.1), gpu=True, busy=0.95))]
    short = [site("mul", 2, 40.0, at=AT, device_ms=40.0)]
    assert not [*look(case(short, gpu=True, busy=0.95))]


def test_written_out_attention_is_left_to_its_own_rule() -> None:
    attention = [site("_softmax", 8, 1.0, at=AT), site("bmm", 16, 1.0, at=AT)]
    assert not [*look(case([*chain(), *attention], gpu=True, busy=0.95, source=SOURCE))]


def transformer(layers: int = 12, each_ms: float = 0.16, cast: str = "copy_") -> list[OpSite]:
    """A GPT's step of 100 ms: in each layer eight products and twenty short operators between them,
    spread over the functions of its modules."""
    made = []
    between = (
        ("native_layer_norm", 2), (cast, 6), ("gelu", 1), ("add", 2), ("gelu_backward", 1),
        ("native_layer_norm_backward", 2), ("mul", 6),
    )  # fmt: skip
    for i in range(layers):
        for at, (op, calls) in enumerate(between):
            ms = each_ms * calls
            where = (f"forward_{at}", 10 * at + 2)
            made.append(site(op, calls, ms, at=where, module=f"B_{i}", device_ms=ms))
        made.append(site("mm", 8, 5.0, at=("linear", 90), module=f"B_{i}", device_ms=5.0))
    return made


@pytest.mark.parametrize("cast", ["copy_", "_to_copy"])  # torch 2.13 and torch 2.11
def test_chains_over_many_functions_are_told_to_compile_the_model(cast: str) -> None:
    (one,) = look(case(transformer(cast=cast), gpu=True, busy=0.95))
    # 240 operators take 38.4 % of the step; of those between two of the 96 products one stays
    assert one.share_pct == pytest.approx(38.4 * (1 - 96 / 240), rel=0.01)
    assert one.gain_bound == pytest.approx(with_tolerance(1 / (1 - 0.384)), rel=0.01)
    assert "torch.compile(model)" in one.change


def test_a_model_that_is_already_compiled_is_silent() -> None:
    told = case(transformer(), gpu=True, busy=0.95, capture=captured())
    assert [*look(told)]
    assert told.capture is not None
    compiled = replace(told.capture, compilations=(Compilation(place="train.py:1"),))
    assert not [*look(replace(told, capture=compiled))]


def test_one_activation_a_product_leaves_nothing_to_merge() -> None:
    ops = [site("mm", 8, 4.0, device_ms=40.0), site("gelu", 8, 4.0, device_ms=40.0)]
    assert not [*look(case(ops, gpu=True, busy=0.95))]


def test_kernels_shorter_than_five_microseconds_are_not_merged() -> None:
    assert not [*look(case(transformer(each_ms=0.004), gpu=True, busy=0.95, ms=2.0))]


def test_batch_norms_between_convolutions_are_merged_and_poolings_are_not() -> None:
    convolutions = site("cudnn_convolution", 50, 4.0, device_ms=40.0)
    norms = site("cudnn_batch_norm", 100, 4.0, device_ms=30.0)
    poolings = site("max_pool2d", 100, 4.0, device_ms=30.0)
    (one,) = look(case([convolutions, norms], gpu=True, busy=0.95))
    assert one.share_pct == pytest.approx(15, rel=0.01)
    assert not [*look(case([convolutions, poolings], gpu=True, busy=0.95))]


def test_a_trace_without_stacks_names_no_line_but_says_to_compile() -> None:
    plain = [replace(one, place=None) for one in transformer()]
    (one,) = look(case(plain, gpu=True, busy=0.95, stacks=False, kind="trace"))
    assert (one.file, one.fix) == ("", "compile")


def test_the_bound_of_a_trace_slowed_by_stacks_is_of_the_busy_time() -> None:
    (one,) = look(case(transformer(), gpu=True, busy=0.7, kind="trace"))
    assert one.confidence == "low"
    assert one.gain_bound > 1 / (1 - 0.384)


def test_the_argument_of_a_module_is_not_itself() -> None:
    method = """class NewGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3.0))))
"""
    ops = [
        replace(one, place=Place(file="train.py", function="forward", line=2)) for one in chain()
    ]
    (one,) = look(case(ops, gpu=True, busy=0.95, source=method))
    assert one.change.startswith("return F.gelu(x, ")
