"""Exceptions that report that the host's memory ran out."""

import pytest
import torch

from ridgeline.harness.capture.memory_watch import host_memory_shortage


def raised(size: int) -> BaseException:
    try:
        torch.empty(size, dtype=torch.uint8)
    except RuntimeError as error:
        return error
    raise AssertionError("it fits")


def test_torchs_own_out_of_memory_message_is_recognised() -> None:
    found = host_memory_shortage(raised(1 << 60), 7, "forward")
    assert found is not None
    assert (found.on, found.killed, found.asked_bytes) == ("host", False, 1 << 60)
    assert (found.step, found.phase) == (7, "forward")
    assert found.place.startswith(__file__)
    assert found.allocated_bytes > 0


def test_pythons_own_error_names_no_size() -> None:
    found = host_memory_shortage(MemoryError(), 0, "")
    assert found is not None
    assert found.asked_bytes == 0


@pytest.mark.parametrize(
    "error",
    [None, ValueError("shapes"), RuntimeError("mat1 and mat2"), torch.OutOfMemoryError("x")],
)
def test_other_errors_and_those_of_a_gpu_do_not_count_as_host_memory(
    error: BaseException | None,
) -> None:
    assert host_memory_shortage(error, 0, "") is None


def test_the_phase_is_that_of_the_code_that_asked() -> None:
    class Hungry(torch.nn.Module):
        def forward(self) -> torch.Tensor:
            return torch.empty(1 << 60, dtype=torch.uint8)

    try:
        Hungry()()
    except RuntimeError as error:
        found = host_memory_shortage(error, 3, "other")  # the step has been left by then
    assert found is not None
    assert found.phase == "forward"
