"""A session on real torch, in this process: what the seams make of each kind of loop."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import ridgeline
from ridgeline.harness.capture import live, seams
from ridgeline.harness.capture.seams import begin, end
from ridgeline.harness.capture.session import Session, StopAfter
from ridgeline.records.run import Capture, Settings, Step, training_loader
from ridgeline.records.run_directory import RunDirectory


class Seen:
    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.session: Session | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self.directory.steps())

    @property
    def capture(self) -> Capture:
        found = self.directory.capture()
        assert found is not None
        return found


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def opened(**settings: Any) -> Iterator[Seen]:
        directory = RunDirectory.make(tmp_path / "runs", "test")
        seen = Seen(directory)
        asked = {"trace_steps": 0, "full": True} | settings
        seen.session = begin(torch, str(directory.path), Settings(**asked))
        try:
            yield seen
        finally:
            if live.session is not None:
                end(seen.session, "finished", "")

    return opened


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def loader(samples: int = 12, batch: int = 4) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(samples, 4)), batch_size=batch)


def _train(model: nn.Module, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()


def test_steps_after_the_windows_are_counted_and_the_counter_comes_off(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.optim import optimizer as hooks

    monkeypatch.setattr("ridgeline.harness.capture.progress.MIN_LIGHT_NS", 0)
    before = dict(hooks._global_optimizer_post_hooks)
    model, other = net(), net()
    anchor = torch.optim.SGD(model.parameters(), lr=0.1)
    with session(full=False, steps=4) as seen:
        _train(model, anchor, 20)
        _train(other, torch.optim.SGD(other.parameters(), lr=0.1), 3)  # another one's do not count
        assert seen.session.progress.off
    assert seen.capture.steps < 20
    assert seen.capture.steps_taken == 20
    assert dict(hooks._global_optimizer_post_hooks) == before


def test_a_hook_of_the_programs_own_behind_ours_outlives_the_windows(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch goes through these hooks while the windows end: what it goes through must not change
    its length."""
    from torch.optim import optimizer as hooks

    monkeypatch.setattr("ridgeline.harness.capture.progress.MIN_LIGHT_NS", 0)
    stepped: list[int] = []
    model = net()
    with session(full=False, steps=4) as seen:
        own = hooks.register_optimizer_step_post_hook(lambda *told: stepped.append(1))
        try:
            _train(model, torch.optim.SGD(model.parameters(), lr=0.1), 20)
        finally:
            own.remove()
    assert len(stepped) == 20
    assert seen.capture.steps_taken == 20


class _Twice(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_steps_that_cannot_be_counted_are_not_known(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks see the step of this optimizer twice: once as its own, once as its parent's."""
    monkeypatch.setattr("ridgeline.harness.capture.progress.MIN_LIGHT_NS", 0)
    model = net()
    with session(full=False, steps=4) as seen:
        _train(model, _Twice(model.parameters(), lr=0.1), 20)
    assert seen.capture.steps_taken is None


def test_steps_of_a_program_that_ends_inside_its_windows_are_all_watched(session: Any) -> None:
    model = net()
    with session() as seen:
        _train(model, torch.optim.SGD(model.parameters(), lr=0.1), 5)
    assert (seen.capture.steps, seen.capture.steps_taken) == (5, 5)


def test_a_training_loop_is_counted_and_timed(session: Any) -> None:
    model, criterion = net(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with session() as seen:
        for (x,) in loader():
            optimizer.zero_grad()
            loss = criterion(model(x), torch.zeros(len(x), 2))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    steps = seen.steps
    assert [step.index for step in steps] == [0, 1, 2]
    assert [step.loss for step in steps] == losses
    assert [step.samples for step in steps] == [4, 4, 4]
    assert all((s.forwards, s.backwards, s.optimizer_steps) == (1, 1, 1) for s in steps)
    for step in steps:
        assert sum(step.host.values()) == step.dur_ns
        assert {"input", "forward", "backward", "optimizer"} <= set(step.host)
    capture = seen.capture
    assert capture.stepping == "optimizer"
    assert [(m.name, m.loss) for m in capture.modules] == [("Sequential", False), ("MSELoss", True)]
    assert capture.loaders[0].batches == 3
    assert capture.loaders[0].place.startswith(__file__)
    assert not capture.problems


def test_evaluation_between_steps_is_no_forward_and_its_input_no_input(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session() as seen:
        for (x,) in loader(8):
            model(x).sum().backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                for (y,) in loader(20):
                    model(y)
            model.train()
    last = seen.steps[-1]
    assert last.forwards == 1
    assert last.samples == 4
    assert last.host["evaluation"] > 0
    assert seen.capture.modules[0].evaluation_calls == 10


def test_accumulated_backwards_are_one_step(session: Any) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    with session() as seen:
        for number in range(6):
            model(torch.randn(4, 4)).sum().backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    assert [(s.index, s.backwards, s.samples) for s in seen.steps] == [(0, 3, 12), (1, 3, 12)]


def test_a_scaler_that_skips_still_ends_the_step(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with session() as seen:
        for _ in range(4):
            scaler.scale(model(torch.randn(4, 4)).pow(2).sum() * 1e6).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert len(seen.steps) == 4
    assert seen.steps[0].skipped
    assert seen.capture.flags.gradient_scaler


def test_a_fused_optimizer_that_skips_by_itself_is_seen(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=1)
    with session() as seen:
        applied = []
        for _ in range(40):
            before = [p.detach().clone() for p in model.parameters()]
            scaler.scale(model(torch.randn(4, 4)).pow(2).sum() * 1e3).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            applied.append(not all(map(torch.equal, before, model.parameters())))
    assert 0 < sum(applied) < 40
    assert [not step.skipped for step in seen.steps] == applied


def test_a_closure_is_timed_inside_the_optimizer(session: Any) -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 4)).pow(2).sum()
        loss.backward()
        return loss

    with session() as seen:
        for _ in range(2):
            optimizer.step(closure)  # type: ignore[arg-type]
    assert len(seen.steps) == 2
    assert seen.steps[0].forwards > 1
    assert seen.steps[0].host["forward"] > 0
    assert seen.steps[0].host["optimizer"] > 0


def test_inference_counts_batches(session: Any) -> None:
    model = net().eval()
    with session() as seen, torch.inference_mode():
        for (x,) in loader(20):
            model(x)
    assert seen.capture.stepping == "call"
    assert [(s.forwards, s.samples) for s in seen.steps] == [(1, 4)] * 5


def test_a_model_trained_in_eval_mode_is_understood(session: Any) -> None:
    model = net().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session() as seen:
        for _ in range(4):
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()
    assert [s.forwards for s in seen.steps][1:] == [1, 1, 1]


def test_a_call_of_ridgeline_step_ends_a_step(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session() as seen:
        for _ in range(3):
            for _ in range(2):
                model(torch.randn(4, 4)).sum().backward()
                with ridgeline.region("update"):
                    optimizer.step()
            ridgeline.step()
    assert seen.capture.stepping == "said"
    assert [s.optimizer_steps for s in seen.steps] == [2, 2, 2]
    assert all(s.regions["update"] > 0 for s in seen.steps[1:])


def test_the_program_stops_after_the_step_asked_for(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = 0

    def train() -> None:
        nonlocal done
        for _ in range(100):
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()
            done += 1

    with session(stop_after=5) as seen, pytest.raises(StopAfter) as raised:
        train()
    assert done == 4  # the fifth was taken, and ended it
    assert raised.value.code == 0
    assert len(seen.steps) == 5
    assert seen.capture.ended == "stopped"


@pytest.mark.parametrize(
    ("trace_steps", "stop_after_s", "steps"), [(0, 0.1, 3), (3, 0.02, 3), (3, 60.0, 8)]
)
def test_long_steps_end_a_run_by_the_time_they_take(
    session: Any, trace_steps: int, stop_after_s: float, steps: int
) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters())

    def train() -> None:
        for _ in range(20):
            time.sleep(0.05)
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()

    wanted = {"stop_after": 8, "stop_after_s": stop_after_s, "trace_steps": trace_steps}
    with session(**wanted) as seen, pytest.raises(StopAfter):
        train()
    assert len(seen.steps) == steps


def test_the_seams_come_off_and_leave_everything_as_it_was(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seams, "_profiler_knows", False)
    monkeypatch.setattr(nn.Module, "__call__", nn.Module._wrapped_call_impl)
    call, backward = nn.Module.__call__, torch.autograd.backward
    zero = torch.optim.Optimizer.zero_grad
    with session():
        assert nn.Module.__call__ is not call
        assert torch.autograd.backward is not backward
    assert nn.Module.__call__ is call
    assert torch.autograd.backward is backward
    assert torch.optim.Optimizer.zero_grad is zero


def test_modules_are_named_in_a_profile_made_after_ours(session: Any, tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session(trace_steps=2, steps=3):
        for _ in range(12):
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()
    with torch.profiler.profile(with_stack=True) as theirs:
        model(torch.randn(4, 4))
    theirs.export_chrome_trace(str(tmp_path / "theirs.json"))
    assert "nn.Module: Linear" in (tmp_path / "theirs.json").read_text()


def test_a_patch_made_meanwhile_stays(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with session():
        ours = torch.autograd.backward

        def patched(*args: Any, **kwargs: Any) -> None:
            ours(*args, **kwargs)

        monkeypatch.setattr(torch.autograd, "backward", patched)
    assert torch.autograd.backward is patched
    net()(torch.ones(1, 4)).sum().backward()


def test_an_error_of_ours_is_recorded_and_the_program_goes_on(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session() as seen:
        assert seen.session is not None

        def broken(*given: Any) -> None:
            raise RuntimeError("ours")

        seen.session.progress.optimizers.stepped = broken  # type: ignore[method-assign]
        for _ in range(20):
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()
    assert "ours" in seen.capture.problems[0]


def test_a_profiler_of_the_programs_own_takes_precedence(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()

    with session(trace_steps=50) as seen:
        for _ in range(16):
            step()
        assert seen.session is not None
        assert seen.session.progress.recording.tracing.running
        with torch.profiler.profile() as theirs:
            for _ in range(3):
                step()
        for _ in range(5):
            step()
    assert any(event.key == "aten::addmm" for event in theirs.key_averages())
    assert "the program profiles itself" in seen.capture.missing[0]
    assert not seen.capture.problems


def test_a_forked_child_records_nothing(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session() as seen:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                model(torch.randn(4, 4)).sum().backward()
                optimizer.step()
                code = 0 if seen.session is not None and seen.session.progress.off else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    assert len(seen.steps) == 0


def test_outside_a_run_step_and_region_do_nothing() -> None:
    assert live.session is None
    ridgeline.step()

    @ridgeline.region("named")
    def three() -> int:
        return 3

    with ridgeline.region("block"):
        assert three() == 3


class _Slow(Dataset[Tensor]):
    def __init__(self, works: bool) -> None:
        self.works = works

    def __len__(self) -> int:
        return 12

    def __getitem__(self, at: int) -> Tensor:
        ends = time.thread_time() + 0.002
        while self.works and time.thread_time() < ends:
            pass
        if not self.works:
            time.sleep(0.002)
        return torch.ones(4)


@pytest.mark.parametrize("works", [True, False])
def test_a_loader_that_computes_is_told_apart_from_one_that_waits(
    session: Any, works: bool
) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session() as seen:
        for x in DataLoader(_Slow(works), batch_size=4):
            model(x).sum().backward()
            optimizer.step()
    (told,) = seen.capture.loaders
    assert told.worked is not None
    assert told.worked > 0.2 if works else told.worked < 0.2


def test_loaders_are_known_by_where_they_were_made_and_whom_they_fed(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session() as seen:
        training = DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=4)
        line = _line_here() - 1
        for (x,) in training:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                for (held_out,) in loader(samples=32):
                    model(held_out)
            model.train()
    capture = seen.capture
    first = next(one for one in capture.loaders if one.made[0].split(":")[1] == str(line))
    others = [one for one in capture.loaders if one is not first]
    assert first.made[0].startswith(f"{__file__}:{line}:test_loaders")
    assert (first.batches, first.training_batches) == (3, 3)
    assert sum(one.batches for one in others) == 24
    assert not any(one.training_batches for one in others)
    assert training_loader(capture.loaders) == first
    assert len(capture.loaders_made) == 2
    assert capture.problems == ()


def _line_here() -> int:
    return sys._getframe(1).f_lineno


def test_a_loader_that_cannot_be_made_raises_its_own_error_and_none_is_recorded_as_ours(
    session: Any,
) -> None:
    with session() as seen, pytest.raises(ValueError, match="num_workers"):
        DataLoader(TensorDataset(torch.randn(4, 4)), num_workers=-1)
    assert seen.capture.problems == ()


def _train_elsewhere(number: int) -> None:
    pass


def test_processes_of_the_programs_own_are_counted(session: Any) -> None:
    context = torch.multiprocessing.get_context("fork")
    with session() as seen:
        children = [context.Process(target=_train_elsewhere, args=(n,)) for n in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        next(iter(DataLoader(TensorDataset(torch.randn(4, 4)), num_workers=1)))
    (found,) = seen.capture.children
    assert (found.function, found.processes) == ("_train_elsewhere", 2)
    assert found.place.startswith(f"{__file__}:")


def test_the_line_of_an_evaluation_is_known(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def check() -> None:
        with torch.no_grad():
            model(torch.randn(4, 4))

    with session() as seen:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()
            check()
    (module,) = seen.capture.modules
    assert module.evaluation_place.endswith("check")


class FSDPModule:
    """Named as torch's, whose `fully_shard` puts it before a module's own class."""


def test_a_module_that_fully_shard_was_called_on_is_known_by_its_own_class(session: Any) -> None:
    model = net()
    model.__class__ = type("FSDPSequential", (FSDPModule, nn.Sequential), {})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session() as seen:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()
    (module,) = seen.capture.modules
    assert (module.name, module.wrappers) == ("Sequential", ("FSDPModule",))
