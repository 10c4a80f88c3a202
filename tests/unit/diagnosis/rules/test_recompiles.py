"""Compiling that goes on while a program runs."""

from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.compilation import recompiles as look
from ridgeline.records.run import Compilation, Window
from ridgeline.records.run_summary import StepTimes
from ridgeline.records.trace import Region
from tests.unit.diagnosis.made_up_steps import step
from tests.unit.diagnosis.made_up_verdict import study, work
from tests.unit.diagnosis.rules.made_up_memory import FILE, capture, case

TEXT = """\
def main():
    compiled = torch.compile(model, dynamic=False)
"""
SIZE = "0/{}: tensor 'args[0]' size mismatch at index 0. expected 512, actual 640"


def again(at: tuple[int, ...], reason: str = SIZE, **changed: Any) -> Case:
    """Forty steps of 100 ms; the first compiles for 5 s, those at `at` for 1 s more."""
    steps = [
        step(i, ms=6000 if not i else 1100 if i in at else 100,
             window="settle" if i < 2 else "light",
             compile_ms=5900 if not i else 1000 if i in at else 0)
        for i in range(40)
    ]  # fmt: skip
    made = [Compilation(place="/v/site-packages/torch/_dynamo/external_utils.py:67", seconds=5.9)]
    made += [
        Compilation(place=f"{FILE}:1", seconds=1.0, recompile_reason=reason.format(i))
        for i, _ in enumerate(at)
    ]
    told = replace(case(TEXT, gpu=False), steps=tuple(steps))
    return replace(told, capture=capture(compilations=tuple(made)), **changed)


def test_the_guard_the_cost_and_the_line_that_asks_for_it() -> None:
    (finding,) = look(again((10, 20, 30)))
    assert finding.rule == "recompiles"
    assert finding.confidence == "high"
    assert "3 of 38 steps compiled again, 3 s in all" in finding.claim
    assert "because the size of `args[0]` changes in dimension 0" in finding.claim
    assert finding.place == f"{FILE}:2"
    assert finding.share_pct == pytest.approx(100 * 3.0 / 6.8, abs=0.1)
    assert finding.change.startswith("torch.compile(model, dynamic=True)")


def test_a_number_that_changes_is_to_be_a_tensor() -> None:
    (finding,) = look(again((10, 20), reason="1/{}: L['scale'] == 0.5  # h = h * scale"))
    assert "the value of `L['scale']` changes" in finding.claim
    assert "torch.tensor" in finding.change


def test_an_attribute_that_changes_is_named_where_it_is_assigned() -> None:
    text = """\
class Scale(nn.Module):
    def __init__(self):
        self.n = 0
    def forward(self, x):
        self.n += 1
        return x * self.n
def main():
    model = Scale()
    net = torch.compile(model)
"""
    guard = "0/{}: self.n == 1     # self.n += 1  # train.py:5 in forward"
    made = again((10, 20), reason=guard, sources=case(text).sources)
    (finding,) = look(made)
    assert finding.place == f"{FILE}:5"
    assert "self.register_buffer('n', torch.tensor(0.0))" in finding.change
    assert "self.n += 1" in finding.change
    outside = text.replace("        self.n += 1\n", "").replace(
        "    net = torch.compile(model)\n",
        "    net = torch.compile(model)\n    for i in data:\n        model.n = i\n",
    )
    (finding,) = look(replace(made, sources=case(outside).sources))
    assert finding.place == f"{FILE}:10"
    assert "model.n.fill_(i)" in finding.change


def test_without_the_source_the_compiled_frame_is_the_place() -> None:
    (finding,) = look(replace(again((10, 20)), sources=case("").sources))
    assert finding.place == f"{FILE}:1"


def test_silent_at_the_second_shape_alone_and_at_the_start() -> None:
    assert not list(look(again((10,))))
    assert not list(look(again((1, 2))))
    assert not list(look(again(())))


def test_every_step_compiles() -> None:
    made = again(tuple(range(1, 40)))
    (finding,) = look(replace(made, times=StepTimes(), shares=None))
    assert "All 39 steps compiled again, 39 s in all" in finding.claim
    assert "gave up" not in finding.claim
    assert finding.share_pct == pytest.approx(100 * 1.0 / 1.1, abs=0.1)
    assert finding.confidence == "high"
    assert finding.place == f"{FILE}:2"


def test_every_step_compiles_and_no_guard_is_remembered() -> None:
    made = again(tuple(range(1, 40)))
    (finding,) = look(replace(made, capture=capture()))
    assert finding.confidence == "medium"


def test_from_the_start_until_torch_gives_up() -> None:
    (finding,) = look(again(tuple(range(1, 8))))
    assert "7 of 39 steps compiled again, 7 s in all" in finding.claim
    assert "until torch gave up" in finding.claim
    assert finding.share_pct == pytest.approx(100 * 7.0 / (7.7 + 3.2), abs=0.1)


def test_an_early_start_counts_against_all_that_ran_on() -> None:
    made = again(tuple(range(1, 5)))
    assert len(list(look(made))) == 1
    alone = Window(kind="alone", first_step=40, start_ns=0, end_ns=3600 * 10**9)
    assert made.capture is not None
    assert not list(look(replace(made, capture=replace(made.capture, windows=(alone,)))))


def test_silent_where_it_is_little() -> None:
    few = again((10, 20))
    steps = tuple(replace(s, compile_ns=min(s.compile_ns, 10_000_000)) for s in few.steps)
    assert not list(look(replace(few, steps=steps)))


def test_in_a_trace_the_gpu_waits_for_it() -> None:
    seen = replace(
        study({"compile": 0.5}),
        regions=(Region(kind="compilation", name="_compile", count=3, host_ns=150_000_000,
                        device_ns=0, operations=0),),
    )  # fmt: skip
    made = replace(case(""), kind="trace", capture=None, steps=(), study=seen, work=work(0.5))
    (finding,) = look(made)
    assert finding.share_pct == pytest.approx(50)
    assert finding.confidence == "medium"
    assert not list(look(replace(made, study=study({"launch-bound": 0.5}))))


@pytest.mark.parametrize(
    "wrapper",
    ["/v/site-packages/torch/_dynamo/external_utils.py:67", "/src/torch/utils/checkpoint.py:9"],
)
def test_the_place_is_the_users_call_where_torch_s_own_frame_was_compiled(wrapper: str) -> None:
    """Two calls of torch.compile: neither of them alone is the place."""
    twice = TEXT + "    other = torch.compile(second, dynamic=False)\n"
    told = again((10, 20, 30))
    assert told.capture is not None
    made = [replace(one, place=wrapper, called_at=f"{FILE}:7") for one in told.capture.compilations]
    sources = case(twice, gpu=False).sources
    (finding,) = look(
        replace(told, sources=sources, capture=replace(told.capture, compilations=tuple(made)))
    )
    assert finding.place == f"{FILE}:7"
