"""Numbers read from the device: what they cost, which line asks, silence where they are free."""

import ast

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rule import with_tolerance
from ridgeline.diagnosis.rules.host_waits import ITEM_SYNC as RULE
from ridgeline.diagnosis.rules.host_waits import item_sync as look
from ridgeline.records.run import CallSeen
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis.made_up_verdict import study
from tests.unit.diagnosis.rules.made_up_waits import MS, at, case, wait

LOOP = """\
def main():
    for step in range(100):
        loss = model(x)
        for parameter in model.parameters():
            largest = max(largest, parameter.grad.norm().item())
        if step % 50 == 0:
            print(loss.item())
"""


def test_a_number_read_in_an_inner_loop_is_named_with_its_line_and_its_cost() -> None:
    (finding,) = look(case(LOOP, waits=(wait(2.0),)))
    assert finding.claim == (
        "`parameter.grad.norm().item()` makes the host wait for the GPU 20 times a step"
    )
    assert (finding.file, finding.line, finding.function) == ("train.py", 5, "main")
    assert finding.share_pct == pytest.approx(20.0)
    assert finding.gain_bound == pytest.approx(with_tolerance(1.25), abs=0.001)
    assert finding.confidence == "high"
    assert "largest = parameter.grad.norm().detach().clamp(min=largest)" in finding.change
    assert finding.docs == RULE.docs


def test_waits_are_charged_no_more_than_the_untraced_step_idles() -> None:
    (finding,) = look(case(LOOP, waits=(wait(8.0),), busy=0.9))
    assert finding.share_pct == pytest.approx(10.0)


def test_one_number_a_step_on_a_busy_device_is_not_worth_a_word() -> None:
    once = wait(0.08, times=1.0, waits=1.0, host_ns=7 * MS)
    assert not list(look(case(LOOP, waits=(once,), busy=0.99)))


def test_device_work_that_only_the_reading_asks_for_counts() -> None:
    (finding,) = look(case(LOOP, waits=(wait(2.0, device_ns=0.5 * MS),)))
    assert finding.share_pct == pytest.approx(25.0)


def test_a_wait_inside_a_library_is_placed_at_the_line_that_calls_it() -> None:
    text = "def main():\n    for x in data:\n        clip_grad_norm_(p, 1.0)\n        opt.step()\n"
    via = ("torch/nn/utils/clip_grad.py:_no_grad_wrapper",
           "torch/nn/utils/clip_grad.py:clip_grad_norm_", "item")  # fmt: skip
    (finding,) = look(case(text, waits=(wait(1.0, via=via),)))
    assert finding.line == 3
    assert finding.claim.endswith("inside clip_grad_norm_()")
    assert finding.change == ""  # no line of the program's own would end it
    assert "torch/nn/utils/clip_grad.py:clip_grad_norm_" in finding.doubt


def test_without_a_source_the_function_is_named_and_without_stacks_nothing() -> None:
    (unread,) = look(case(waits=(wait(2.0, place=at(9)),)))
    assert (unread.line, unread.confidence) == (9, "medium")
    (nowhere,) = look(case(waits=(wait(2.0, place=None, via=()),)))
    assert (nowhere.line, nowhere.confidence) == (None, "low")
    assert "stacks" in nowhere.doubt


def test_float_of_a_tensor_is_found_too() -> None:
    text = "def main():\n    for x in data:\n        total += float(loss)\n"
    (finding,) = look(case(text, waits=(wait(2.0, via=()),)))
    assert finding.line == 3


def test_the_waits_of_other_rules_are_left_to_them() -> None:
    others = (
        wait(ops=("aten::is_nonzero", *wait().ops)),
        wait(ops=("aten::repeat_interleave", *wait().ops)),
        wait(via=("torch/_tensor.py:__format__", "item")),
    )
    assert not list(look(case(LOOP, waits=others)))


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("self.peak = y.detach().amax().item()", "self.peak = y.detach().amax()  #"),
        ("total += float(loss)", "total += loss.detach().clone().double()  #"),
        ("total += loss.mean().item()", "total += loss.mean().detach().double()  #"),
        ("history.append(loss.item())", "history.append(loss.detach().clone())  #"),
        ("norms = [p.norm().item() for p in ps]",
         "norms = torch.stack([p.norm() for p in ps]).flatten().tolist()  #"),
        ("print('loss', loss.item())", "if step % 100 == 0:\n    print('loss', loss.item())"),
        ("if loss.item() > 3: stop()", "seen = 0  # once, before the loop\nseen = seen + (loss"),
        ("schedule(loss.item())", "value = loss.detach().clone()  # a tensor: use it instead"),
    ],
)  # fmt: skip
def test_the_change_keeps_the_number_on_the_device_and_means_the_same(
    line: str, change: str
) -> None:
    text = f"def main():\n    for step in range(9):\n        {line}\n"
    (finding,) = look(case(text, waits=(wait(2.0, via=()),)))
    assert finding.change.startswith(change)
    ast.parse(finding.change)


def test_without_a_count_in_sight_one_is_made() -> None:
    text = "class M:\n    def forward(self, x):\n        print(x.sum().item())\n"
    (finding,) = look(case(text, waits=(wait(2.0, place=at(2, "forward")),)))
    assert "step" not in finding.change
    assert "if next(asked) % 100 == 0:\n    print(x.sum().item())" in finding.change


def test_few_waits_do_not_promise_launches_hidden_too() -> None:
    few = wait(2.0, times=1.0, waits=1.0)
    idle = study({"synchronisation": 0.1, "launch-bound": 0.3}, ms=10.0)
    (finding,) = look(case(LOOP, waits=(few,), study=idle))
    assert finding.gain_bound == pytest.approx(
        with_tolerance(1 / (1 - finding.share_pct / 100)), abs=0.01
    )


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("if loss.item() > 3.0:\n            print('diverged')", "(loss.detach() > 3.0)"),
        ("if loss.item() > 3.0:\n            bad += 1", "bad += loss.detach() > 3.0"),
        ("assert loss.item() < 9", "torch._assert_async(loss.detach() < 9)"),
        ("if step > 9 and loss.item() > 3:\n            print(step)", "(loss.detach() > 3)"),
        ("while loss.item() > 3:\n            again()", "(loss.detach() > 3)"),
    ],
)
def test_a_number_read_for_a_condition_is_compared_on_the_device(
    statement: str, expected: str
) -> None:
    text = f"def main():\n    for step in range(9):\n        loss = model(x)\n        {statement}\n"
    (finding,) = look(case(text, waits=(wait(2.0),)))
    assert finding.line == 4
    assert expected in finding.change
    assert "total" not in finding.change
    ast.parse(finding.change)


def test_a_line_in_a_branch_that_was_not_taken_is_not_named() -> None:
    text = (
        "def main():\n    for x in data:\n        loss = model(x)\n        if debug:\n"
        "            print(loss.item())\n        history.append(loss.item())\n"
    )
    called = {"train.py": {3: frozenset({"Net"}), 6: frozenset({"item"})}}
    told = case(text, waits=(wait(2.0),))
    (blind,) = look(told)
    assert blind.line == 5
    (finding,) = look(replace(told, sources=SourceFiles(texts={"train.py": text}, called=called)))
    assert finding.line == 6
    assert not any(one.what == "also on lines" for one in finding.evidence)


def test_on_a_cpu_numbers_read_in_every_step_are_told_without_a_measurement() -> None:
    text = "def main():\n    for x in data:\n        if loss.item() > 3:\n            stop()\n"
    told = case(text)
    assert told.capture is not None
    calls = (
        CallSeen(file="train.py", line=3, name="item", times=3),
        CallSeen(file="train.py", line=9, name="item", times=1),
    )
    (finding,) = look(replace(told, on_gpu=False, capture=replace(told.capture, calls=calls)))
    assert (finding.line, finding.function, finding.confidence) == (3, "main", "unmeasured")
    assert finding.share_pct == 0
    assert "(loss.detach() > 3)" in finding.change
