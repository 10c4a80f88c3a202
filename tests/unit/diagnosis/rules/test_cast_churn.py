"""cast-churn: the same weights cast at each call, activations cast there and back."""

from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import with_tolerance
from ridgeline.diagnosis.rules.cast_churn import look
from ridgeline.records.run import Flags
from ridgeline.records.sites import OpSite, SiteKernel
from ridgeline.records.trace import Place
from tests.unit.diagnosis.rules.made_up_precision import FILE, MS, case, cpu

INSIDE = """\
class Cell(nn.Module):
    def forward(self, state):
        for _ in range(32):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                state = self.mix(state)
        return state
"""
FORWARD = Place(file=FILE, line=2, function="forward")
WEIGHT = [4096, 4096]


def cast(
    ms: float, calls: float, dims: list[int], *, narrow: bool = True, **changed: Any
) -> OpSite:
    given = {
        "op": "aten::_to_copy", "within": ("aten::linear", "aten::to"), "dims": (dims, [], []),
        "types": ("float" if narrow else "c10::BFloat16", "Scalar", ""),
        "concrete": ("", "15" if narrow else "6", ""), "phase": "forward", "place": FORWARD,
        "module": "Cell_0 / Linear_0", "calls": calls, "device_ns": ms * MS, "exposed_ns": ms * MS,
        "kernels": (SiteKernel(name="bfloat16_copy_kernel_cuda", count=calls, ns=ms * MS),),
    }  # fmt: skip
    return OpSite(**{**given, **changed})


def gradients(calls: float = 1.0) -> OpSite:
    return OpSite(op="torch::autograd::AccumulateGrad", dims=(WEIGHT,), types=("float",),
                  calls=calls, phase="backward")  # fmt: skip


def back(ms: float, calls: float) -> OpSite:
    return cast(ms, calls, WEIGHT, narrow=False, phase="backward",
                within=("ToCopyBackward0", "aten::to"))  # fmt: skip


def run(*sites: OpSite, source: str = INSIDE) -> Case:
    return case(*sites, flags=Flags(autocast=("cuda bfloat16",)), source=source)


def test_a_weight_cast_at_every_call() -> None:
    [found] = look(run(cast(0.8, 32, WEIGHT), back(0.8, 32), gradients()))
    assert "casts the same weights 32 times a step" in found.claim
    assert found.share_pct == pytest.approx(100 * 0.16 * 31 / 32, abs=0.1)
    assert (found.file, found.line, found.function) == (FILE, 4, "forward")
    assert found.confidence == "high"
    assert "around the loop" in found.change


def test_gradients_summed_in_float32_count_towards_the_bound() -> None:
    sums = OpSite(op="aten::add_", dims=(WEIGHT, WEIGHT), types=("float", "float"), calls=31.0,
                  phase="backward", device_ns=1.0 * MS, exposed_ns=1.0 * MS)  # fmt: skip
    [found] = look(run(cast(0.8, 32, WEIGHT), back(0.8, 32), gradients(), sums))
    assert found.share_pct == pytest.approx(100 * (0.16 * 31 / 32 + 0.06), abs=0.1)
    assert found.claim.endswith("1.6 ms of casts, and 1 ms of float32 sums of their gradients")
    assert found.evidence[-1].text == "15.5 % of the step in casts, 6 % in sums, at half the width"


def test_of_a_trace_slowed_by_stacks_the_busy_device_counts() -> None:
    """The critical path runs over a host that is faster without stacks."""
    hidden = [replace(one, exposed_ns=0.0) for one in (cast(0.8, 32, WEIGHT), back(0.8, 32))]
    made = case(*hidden, gradients(), source=INSIDE)
    [found] = look(replace(made, work=replace(made.work, operator_ms=7.0)))
    assert found.share_pct == pytest.approx(100 * 0.16 * 31 / 32, abs=0.1)
    assert found.gain_bound == pytest.approx(with_tolerance(1 / (1 - 0.155 / 0.7)), abs=0.01)
    assert "of the time the device is busy" in found.doubt


def test_a_cache_switched_off_is_named_wherever_it_stands() -> None:
    text = "def main():\n    with torch.autocast('cuda', torch.bfloat16, cache_enabled=False):\n" \
           "        loss = model(x)\n"  # fmt: skip
    [found] = look(run(cast(0.8, 4, WEIGHT), gradients(), source=text))
    assert found.line == 2
    assert found.change == "with torch.autocast('cuda', torch.bfloat16):"


def test_each_weight_cast_once_is_the_price_of_autocast() -> None:
    every = [cast(0.5, 1, WEIGHT, module=f"Net / Linear_{i}") for i in range(3)]
    assert not list(look(run(*every, back(1.5, 3), gradients(3.0))))


def test_gradient_accumulation_casts_once_for_each_backward() -> None:
    assert not list(look(run(cast(0.8, 4, WEIGHT), back(0.8, 4), gradients(4.0))))


def test_without_gradients_modules_say_how_many_weights_there_are() -> None:
    again = cast(0.8, 32, WEIGHT)
    [found] = look(run(again))
    assert "32 times" in found.claim
    once = [cast(0.8, 1, WEIGHT, module=f"Net / Linear_{i}") for i in range(32)]
    assert not [f for f in look(run(*once)) if "same weights" in f.claim]
    nameless = replace(again, module="")
    assert not list(look(run(nameless)))


def test_a_cast_there_and_back_in_the_source() -> None:
    text = "def forward(self, x):\n    y = x.float()\n    y = y * self.scale\n" \
           "    return y.to(torch.bfloat16)\n"  # fmt: skip
    place = Place(file=FILE, line=1, function="forward")
    hand = {"within": ("aten::to",), "place": place}
    up = cast(0.5, 24, [8192, 1024], narrow=False, **hand)
    down = cast(0.5, 24, [8192, 1024], **hand)
    [found] = look(run(up, down, source=text))
    assert "cast to float32 and back 24 times a step" in found.claim
    assert found.line == 2
    assert found.share_pct == pytest.approx(10, abs=0.1)
    assert not list(look(run(up, source=text)))  # one way only: the loss wants float32
    assert not list(look(run(up, down, source="")))  # a library's own business


def test_copies_of_one_type_and_over_the_link_are_no_casts() -> None:
    same = cast(5.0, 9, WEIGHT, types=("c10::BFloat16", "Scalar"))
    copy = SiteKernel(name="Memcpy HtoD (Pageable -> Device)", count=1, ns=1)
    linked = cast(5.0, 9, WEIGHT, kernels=(copy,))
    assert not list(look(run(same, linked)))


def test_without_shapes_only_a_large_share_of_casts_is_said() -> None:
    bare = replace(cast(1.0, 40, WEIGHT), dims=(), types=(), concrete=(), place=None, module="")
    made = case(bare)
    blind = replace(made.sites, shapes=False)
    assert not list(look(replace(made, sites=blind)))
    more = replace(bare, device_ns=3.0 * MS, exposed_ns=3.0 * MS)
    assert not list(look(replace(made, sites=replace(made.sites, ops=(more,)))))
    [found] = look(replace(made, sites=replace(blind, ops=(more,))))
    assert found.confidence == "low"
    assert "30 % of the step" in found.claim


LOOP = """\
def main():
    for start in range(8):
        values = table.float()
        rows = values[start].float()
        loss = model(rows)
"""


def test_a_tensor_cast_in_every_turn_of_a_loop() -> None:
    place = Place(file=FILE, line=1, function="main")
    again = cast(2.0, 8, [2000, 512], narrow=False, within=("aten::to",), place=place)
    [found] = look(run(again, source=LOOP))
    assert found.line == 3
    assert "`table.float()` casts the same tensor 8 times a step" in found.claim
    assert found.share_pct == pytest.approx(100 * 0.2 * 7 / 8, abs=0.1)
    assert found.change.startswith("cast = table.float()")
    once = replace(again, calls=1.0)
    assert not list(look(run(once, source=LOOP)))
    changing = LOOP.replace("        values = table.float()\n", "")  # another tensor every turn
    assert not list(look(run(again, source=changing)))


def test_a_constant_cast_once_in_every_step() -> None:
    place = Place(file=FILE, line=1, function="main")
    one = cast(1.0, 1, [8192, 512], narrow=False, within=("aten::to",), place=place)
    text = "def main():\n    for batch in loader:\n        loss = model(batch, table.float())\n"
    [found] = look(run(one, source=text))
    assert "casts the same tensor again in every step" in found.claim
    assert found.share_pct == pytest.approx(10, abs=0.1)
    # which of two casts it was, nothing tells
    both = text + "        loss.float().backward()\n"
    assert not list(look(run(one, source=both)))
    assert not list(look(run(one, source=text.replace("table.", "batch."))))


def test_on_a_processor_what_a_cast_leaves_behind_counts_too() -> None:
    place = Place(file=FILE, line=1, function="main")
    again = cast(0.0, 8, [2000, 512], narrow=False, within=("aten::to",), place=place,
                 host_ns=2.0 * MS, kernels=())  # fmt: skip
    [found] = look(case(again, device=cpu(), flags=Flags(), source=LOOP))
    assert found.share_pct == pytest.approx(100 * 1.5 * 0.2 * 7 / 8, abs=0.1)


def test_weights_cast_by_hand_at_every_call() -> None:
    text = "def forward(self, x):\n    return F.linear(x, self.weight.float())\n"
    place = Place(file=FILE, line=1, function="forward")
    again = cast(1.0, 8, WEIGHT, narrow=False, within=("aten::to",), place=place)
    [found] = look(run(again, gradients(), source=text))
    assert "The program casts the same weights 8 times a step" in found.claim
    assert found.line == 2
    assert found.change == "cast = self.weight.float()  # once, and kept"


def test_activations_of_a_weights_shape_are_not_taken_for_it() -> None:
    linear = OpSite(op="aten::linear", dims=(WEIGHT, WEIGHT, []), calls=1.0)
    two = cast(0.8, 2, WEIGHT)  # the weight, and what goes in
    assert not list(look(run(two, gradients(), linear)))
    assert list(look(run(two, gradients())))
