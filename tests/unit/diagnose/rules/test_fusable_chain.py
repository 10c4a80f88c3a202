"""Chains of element-wise operators on large tensors."""

import pytest

from ridgeline.diagnose.rules.fusable_chain import look
from ridgeline.records.op_site import OpSite
from tests.unit.diagnose.rules.made_up_launch import case, site

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
