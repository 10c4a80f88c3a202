"""The process around a trial is as it was, whatever a change did to it."""

import os
import random
import signal
import time
from typing import Any

import pytest
import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader

from ridgeline.optimization.function_state import HeldInterrupts, SavedProcess, time_limit


def test_settings_patches_hooks_and_random_numbers_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RIDGELINE_TEST", "as it was")
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    theirs = (DataLoader.__init__, torch.nn.functional.cross_entropy, torch.Tensor.to)
    hooks = dict(optimizers._global_optimizer_pre_hooks)
    process = SavedProcess(torch)
    drawn = torch.rand(3), random.random()

    torch.set_num_threads(threads + 1)
    torch.set_float32_matmul_precision("high" if precision != "high" else "highest")
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_autocast_enabled("cpu", True)
    torch._C._set_grad_enabled(False)
    DataLoader.__init__ = lambda *given: None  # type: ignore[method-assign]
    torch.nn.functional.cross_entropy = lambda *given: None  # type: ignore[assignment]
    torch.Tensor.to = lambda *given: None  # type: ignore[method-assign,assignment]
    optimizers.register_optimizer_step_pre_hook(lambda *given: None)
    os.environ["RIDGELINE_TEST"] = "changed"
    os.environ["RIDGELINE_NEW"] = "1"
    process.restore()

    assert torch.get_num_threads() == threads
    assert torch.get_float32_matmul_precision() == precision
    assert not torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    assert theirs == (DataLoader.__init__, torch.nn.functional.cross_entropy, torch.Tensor.to)
    assert "to" not in vars(torch.Tensor)
    assert optimizers._global_optimizer_pre_hooks == hooks
    assert os.environ["RIDGELINE_TEST"] == "as it was"
    assert "RIDGELINE_NEW" not in os.environ
    assert torch.equal(torch.rand(3), drawn[0])
    assert random.random() == drawn[1]


def test_ctrl_c_waits_until_everything_is_put_back() -> None:
    interrupts, done = HeldInterrupts(), []
    interrupts.begin()
    os.kill(os.getpid(), signal.SIGINT)
    done.append("put back")
    with pytest.raises(KeyboardInterrupt):
        interrupts.end()
    assert done == ["put back"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_step_that_hangs_is_ended() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeoutError, match="had not ended"), time_limit(0.05):
        time.sleep(5)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_an_alarm_of_the_programs_own_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    rang: list[Any] = []
    theirs = signal.signal(signal.SIGALRM, lambda *given: rang.append(given))
    try:
        signal.setitimer(signal.ITIMER_REAL, 60)
        with time_limit(30):
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 30
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, theirs)
