import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from ridgeline.equality.trials.distances import of_output_prints
from ridgeline.harness.trials import tensor_prints as prints
from ridgeline.harness.trials.float64_reference import copied_inputs, renewed_inputs
from ridgeline.harness.trials.inference_outputs import (
    MAX_TENSORS_PER_STEP,
    SKETCH_SIZE,
    OutputWatch,
)
from ridgeline.harness.trials.watched_steps import Watch
from ridgeline.records.trial import OutputPrint


def printed(tensor: Tensor) -> list[float]:
    """Its norm and its sketch."""
    found: list[float] = prints.glanced(torch, tensor, prints.signs(torch, "cpu")).tolist()
    return found[: 1 + SKETCH_SIZE]


def of_steps(*values: Any, keep: bool) -> tuple[list[tuple[OutputPrint, ...]], dict[int, float]]:
    """Each a step's output; the next comes before the last is let go, as in a loop."""
    answers, found = OutputWatch(torch), []
    held: list[Any] = []
    for step, make in enumerate(values):
        answers.step_begins(step)
        out = make()
        answers.returned(out)
        held = [*held, out] if keep else [out]
        del out
        found.append(answers.step_ended(step))
    return found, answers.changed


def test_a_print_is_of_the_whole_tensor_and_of_where_it_differs() -> None:
    tensor = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0))
    before = printed(tensor)
    assert before[0] == pytest.approx(float(tensor.norm()), rel=1e-6)
    assert before == printed(tensor.clone())
    tensor[-3:] = 0
    after = printed(tensor)
    assert before[1:-2] == after[1:-2]  # the first eleven twelfths
    assert before[-2:] != after[-2:]


def test_neighbouring_columns_are_all_looked_at() -> None:
    tensor = torch.randn(65_536, 4)
    before = printed(tensor)
    for column in range(4):
        other = tensor.clone()
        other[:, column] *= -1  # which no norm shows
        assert printed(other)[1:] != before[1:]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_any_type_is_printed(dtype: torch.dtype) -> None:
    tensor = torch.arange(1, 100).to(dtype)
    assert printed(tensor)[0] == pytest.approx(float(tensor.double().norm()), rel=1e-6)


def test_random_numbers_of_the_program_are_not_drawn() -> None:
    state = torch.get_rng_state()
    of_steps(lambda: torch.ones(3), lambda: torch.ones(3), keep=True)
    assert torch.equal(state, torch.get_rng_state())


def test_outputs_of_any_kind_are_printed_and_integers_where_there_is_nothing_else() -> None:
    both = {"logits": torch.randn(2, 3), "at": torch.arange(4), "more": [torch.randn(5)]}
    (found,), _ = of_steps(lambda: both, keep=False)
    assert [one.numel for one in found] == [6, 5]
    (tokens,), _ = of_steps(lambda: torch.arange(7), keep=False)
    assert [(one.numel, one.whole) for one in tokens] == [(7, True)]
    (nothing,), _ = of_steps(lambda: "text", keep=False)
    assert nothing == ()


def test_a_step_of_many_calls_leaves_a_few_prints() -> None:
    answers = OutputWatch(torch)
    for _ in range(100):
        answers.returned(torch.ones(2))
    assert len(answers.step_ended(0)) == MAX_TENSORS_PER_STEP


def test_what_the_program_keeps_is_read_again_and_what_it_drops_is_not() -> None:
    values = [lambda: torch.randn(4) for _ in range(4)]
    assert of_steps(*values, keep=True)[1] == {0: 0.0, 1: 0.0}
    assert of_steps(*values, keep=False)[1] == {}


def test_a_view_of_an_output_is_kept_as_well() -> None:
    answers, held = OutputWatch(torch), []
    for step in range(3):
        answers.step_begins(step)
        out = torch.randn(6)
        answers.returned(out)
        held.append(out[2:].numpy())
        del out
        answers.step_ended(step)
    assert answers.changed == {0: 0.0}


def test_an_output_that_is_written_over_is_found() -> None:
    place = torch.empty(4)
    _, changed = of_steps(*[lambda: place.normal_() for _ in range(3)], keep=True)
    assert changed[0] > 0.1


def test_an_output_that_cannot_be_read_any_more_is_as_bad() -> None:
    answers, first = OutputWatch(torch), torch.randn(4)
    answers.returned(first)
    answers.step_ended(0)
    first.untyped_storage().resize_(0)  # as a graph does with the outputs of its last run
    answers.step_begins(2)
    assert answers.changed[0] == math.inf


def test_a_cache_that_a_call_appends_to_is_not_appended_to_by_ours() -> None:
    class Cache:
        def __init__(self) -> None:
            self.seen: list[Tensor] = []

    class Net(nn.Linear):
        def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
            assert cache is not None
            cache.seen.append(x)
            return super().forward(torch.cat(cache.seen).sum(0, keepdim=True))

    net, cache, watch = Net(3, 2).eval(), Cache(), Watch(torch, 1)
    x = torch.randn(1, 3)
    watch.call(net, (x,), {"cache": cache})
    watch.changed(net)
    assert cache.seen == []
    with torch.no_grad():
        watch.returned(net(x, cache=cache))
    watch.step_ended()
    assert len(cache.seen) == 1
    assert watch.over
    assert watch.evaluation[0] == pytest.approx(watch.steps[0].outputs[0].norm)
    assert watch.evaluation == watch.reference.outputs


def test_inputs_that_cannot_be_copied_give_a_reason_and_steps_are_still_watched() -> None:
    class Session:
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no second connection")

    net, watch = nn.Linear(3, 2), Watch(torch, 1)
    watch.call(net, (torch.randn(4, 3), Session()), {})
    watch.changed(net)
    watch.step_ended()
    assert watch.steps[0].samples == 4
    assert watch.evaluation == ()
    assert watch.reference.missing == (
        "no float64 reference: what the model is given cannot be copied: "
        "TypeError: no second connection"
    )
    assert watch.problems == []


@pytest.mark.parametrize("fill", [-math.inf, math.nan, -1e4, -65504.0, -1e9, -3e38])
def test_what_lies_beside_a_mask_is_printed_by_itself(fill: float) -> None:
    def masked(seed: int) -> OutputPrint:
        tensor = torch.randn(8, 100, generator=torch.Generator().manual_seed(seed))
        tensor[:, 0] = fill
        ((found,),), _ = of_steps(lambda: tensor, keep=False)
        return found

    found = masked(0)
    assert found == masked(0)
    assert found.odd == (0 if math.isfinite(fill) else 8)
    assert math.isfinite(found.norm)
    beside = found.rest or found
    assert beside.numel == (792 if found.rest else 800)
    assert beside.norm == pytest.approx(math.sqrt(792), rel=0.1)
    other = masked(1)
    assert of_output_prints([found], [found]) == 0
    far = of_output_prints([found], [other])
    assert far is not None
    assert far > 0.5


def test_large_numbers_that_are_no_mask_are_all_one() -> None:
    spread = torch.linspace(1, 4000, 100)
    ((found,),), _ = of_steps(lambda: spread, keep=False)
    assert found.rest is None
    assert found.norm == pytest.approx(float(spread.norm()))


def test_a_masked_output_that_is_written_over_is_found() -> None:
    place = torch.empty(4, 50)

    def made() -> Tensor:
        place.normal_()
        place[:, 0] = -1e9
        return place

    assert of_steps(*[made] * 3, keep=True)[1][0] > 0.1


def test_a_fault_of_ours_is_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed_after(error: Exception) -> dict[int, float]:
        answers, first = OutputWatch(torch), torch.randn(4)
        answers.returned(first)
        answers.step_ended(0)

        def failing(*_: Any) -> Any:
            raise error

        monkeypatch.setattr(answers, "_print", failing)
        answers.step_begins(2)
        return answers.changed

    assert changed_after(torch.OutOfMemoryError("CUDA out of memory")) == {}
    assert changed_after(TypeError("no such thing")) == {}
    said = "accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run"
    assert changed_after(RuntimeError(said)) == {0: math.inf}


def test_a_print_that_cannot_be_read_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = OutputWatch(torch)
    monkeypatch.setattr(answers, "_print", lambda _: torch.ones(50, device="meta"))
    answers.returned(torch.ones(4))
    with pytest.raises(NotImplementedError):
        answers.step_ended(0)
    assert answers.step_ended(1) == ()


class FakeCuda:
    """Of the allocator's counter and of the streams; `did` in the order it was asked."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.peak = 100
        self.capturing = False

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def max_memory_allocated(self) -> int:
        return self.peak

    def reset_peak_memory_stats(self) -> None:
        self.peak = 50

    def get_rng_state(self) -> Tensor:
        return torch.zeros(2)

    def synchronize(self, device: Any) -> None:
        self.did.append(f"waits for {device}")


class Faked:
    """torch with that, on a host."""

    def __init__(self) -> None:
        self.cuda = FakeCuda()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def test_the_device_is_waited_for_before_a_print_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Faked()
    answers = OutputWatch(fake)
    first = torch.randn(4)
    answers.returned(first)
    answers._signs[torch.device("cuda", 1)] = answers._signs[torch.device("cpu")]
    read = prints.glanced

    def noted(*asked: Any) -> Any:
        fake.cuda.did.append("prints")
        return read(*asked)

    monkeypatch.setattr(prints, "glanced", noted)
    answers.step_ended(0)
    assert fake.cuda.did == ["waits for cuda:1"]
    fake.cuda.capturing = True
    answers.step_begins(2)  # a graph is being captured: nothing may be waited for
    assert fake.cuda.did == ["waits for cuda:1"]
    fake.cuda.capturing = False
    answers.step_begins(3)
    assert fake.cuda.did == ["waits for cuda:1", "waits for cuda:1", "prints"]
    assert answers.changed == {0: 0.0}


def test_what_is_taken_to_look_is_not_the_programs_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, net = Faked(), nn.Linear(3, 2)
    watch = Watch(fake, 4)
    watch._cannot_copy = True  # no float64 reference here

    def looks(*_: Any) -> None:
        fake.cuda.peak += 1000

    monkeypatch.setattr(watch.outputs, "step_begins", looks)
    monkeypatch.setattr(watch.outputs, "returned", looks)
    for _ in range(2):
        watch.call(net, (torch.randn(1, 3),), {})
        fake.cuda.peak += 70  # the program's own
        watch.returned(None)
        watch.step_ended()
    assert watch.peak_bytes == 120
    assert fake.cuda.peak == 50


class Pair(NamedTuple):
    one: Tensor
    other: Any


def test_what_holds_the_model_is_copied_and_the_model_is_not() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    holder = SimpleNamespace(model=net, part=net[0], weights=[net[0].weight], seen=[1])
    for copied in (copied_inputs, renewed_inputs):
        found = copied(torch, {"call": net.forward, "holder": holder}, net)
        assert found["call"].__self__ is net
        assert found["holder"].model is net
        assert found["holder"].part is net[0]
        assert found["holder"].weights[0] is net[0].weight
        assert found["holder"].seen is not holder.seen
    other = nn.Linear(1, 1)
    assert copied_inputs(torch, holder, other).model is not net
    assert copied_inputs(torch, holder.model.forward, other).__self__ is net


def test_a_named_tuple_of_tensors_with_gradients_is_kept() -> None:
    grown = torch.randn(3, requires_grad=True) * 2
    found = copied_inputs(torch, (Pair(grown, {"x": [1]}),), nn.Linear(1, 1))[0]
    assert type(found) is Pair
    assert torch.equal(found.one, grown)
    assert not found.one.requires_grad


def test_a_model_that_is_given_a_named_tuple_has_a_float64_reference() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(3, 2)

        def forward(self, pair: Pair) -> Tensor:
            found: Tensor = self.last(pair.one)
            return found

    net, watch = Net(), Watch(torch, 1)
    watch.call(net, (Pair(torch.randn(4, 3), None),), {})
    watch.changed(net)
    assert watch.problems == []
    assert watch.reference.error is not None
    assert watch.reference.error < 1e-6


def test_an_output_that_c_alone_still_holds_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = []

    class Reference:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

        def __call__(self) -> Tensor:
            fixed.append(self.tensor)
            return self.tensor

    monkeypatch.setattr("torch.utils.weak.TensorWeakRef", Reference)
    assert of_steps(*[lambda: torch.ones(2)] * 3, keep=False)[1] == {0: 0.0}
    assert len(fixed) == 1


def test_what_a_language_model_predicts_is_what_generate_writes() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=None,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    watch = OutputWatch(torch)
    model.register_forward_pre_hook(
        lambda _, args, kwargs: watch.called(args, kwargs), with_kwargs=True
    )
    model.register_forward_hook(lambda _, args, value: watch.returned(value))
    prompt = torch.tensor([[1, 2, 3], [4, 5, 6]])
    written = model.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0)
    calls = watch.predicted()
    likeliest = [[row[0] for row in call.tokens] for call in calls]
    assert likeliest == written[:, 3:].T.tolist()
    assert [list(call.given) for call in calls] == written[:, 2:-1].T.tolist()
    assert all(row == tuple(sorted(row, reverse=True)) for call in calls for row in call.logits)
    assert watch.predicted() == ()


def test_a_classifier_of_images_predicts_no_tokens() -> None:
    watch, images = OutputWatch(torch), torch.randn(2, 12)
    watch.called((images,), {})
    watch.returned(nn.Linear(12, 10)(images))
    assert watch.predicted() == ()
