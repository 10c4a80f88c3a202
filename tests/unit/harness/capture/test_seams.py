"""Calls put into torch's own functions: seen by nobody but us."""

import inspect
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ridgeline.harness.capture.progress import Gate
from ridgeline.harness.capture.seams import instrumented

ORIGINAL = nn.Module._wrapped_call_impl


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor, fail: bool = False) -> Tensor:
        if fail:
            raise ValueError("asked for")
        out: Tensor = self.inner(x)
        return out


class Notes:
    def __init__(self) -> None:
        self.gate = Gate()
        self.log: list[Any] = []

    def enter(self, *given: Any) -> str:
        self.log.append(("enter", len(given)))
        return "token"

    def leave(self, token: Any) -> None:
        self.log.append(("leave", token))

    def around(self, function: Any, *passing: str, see: Any = None) -> Any:
        return instrumented(
            function,
            torch.compiler.is_dynamo_compiling,
            self.gate,
            self.enter,
            self.leave,
            passing=passing,
            see=see,
        )


@pytest.fixture
def notes() -> Iterator[Notes]:
    """With nn.Module.__call__ instrumented."""
    notes = Notes()
    before = nn.Module.__call__  # another test's seam may be on, with its gate closed
    nn.Module.__call__ = notes.around(ORIGINAL, "self", "args", "kwargs")
    yield notes
    nn.Module.__call__ = before


def fall(net: Net) -> str:
    try:
        net(torch.ones(1, 3), fail=True)
    except ValueError:
        return traceback.format_exc()
    raise AssertionError("it did not fail")


def depth(net: nn.Module) -> int:
    found = []

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found.append(len(inspect.stack()))
            return x

    nn.Sequential(nn.Sequential(Looks()))(torch.ones(1))
    return found[0]


def test_a_traceback_is_the_same_to_the_letter() -> None:
    net, notes, before = Net(), Notes(), nn.Module.__call__
    nn.Module.__call__ = ORIGINAL
    plain = fall(net)
    nn.Module.__call__ = notes.around(ORIGINAL, "self", "args", "kwargs")
    try:
        ours = fall(net)
    finally:
        nn.Module.__call__ = before
    assert ours == plain
    assert notes.log == [("enter", 3), ("leave", "token")]


def test_the_stack_is_no_deeper() -> None:
    notes, before = Notes(), nn.Module.__call__
    nn.Module.__call__ = ORIGINAL
    plain = depth(Net())
    nn.Module.__call__ = notes.around(ORIGINAL, "self", "args", "kwargs")
    try:
        assert depth(Net()) == plain
    finally:
        nn.Module.__call__ = before


def test_each_call_is_recorded_unless_the_gate_is_closed(notes: Notes) -> None:
    Net()(torch.ones(1, 3))
    assert len(notes.log) == 4
    notes.log.clear()
    notes.gate.closed = True
    Net()(torch.ones(1, 3))
    assert notes.log == []


def test_signature_name_and_source_stay(notes: Notes) -> None:
    assert nn.Module.__call__.__qualname__ == "Module._wrapped_call_impl"
    assert str(inspect.signature(nn.Module.__call__)) == "(self, *args, **kwargs)"
    assert "_call_impl" in inspect.getsource(nn.Module.__call__)


def test_results_can_be_observed() -> None:
    notes, seen = Notes(), []

    def see(first: Any, value: Any) -> Any:
        seen.append((first, value))
        return value

    made = notes.around(_sample, "a", see=see)
    assert made(1) == (1, 2, 3)
    assert made(5, c=9) == (5, 2, 9)
    assert made(0) == "none"
    assert seen == [(1, (1, 2, 3)), (5, (5, 2, 9)), (0, "none")]


def test_a_seam_that_observes_results_can_be_replaced_by_one_that_does_not(notes: Notes) -> None:
    seen: list[Any] = []

    def see(first: Any, value: Any) -> Any:
        seen.append(value)
        return value

    plain, sees = notes.around(_pair, "a"), notes.around(_pair, "a", see=see)
    assert (plain(1), sees(2), notes.around(_pair, "a")(3)) == ((1, 1), (2, 2), (3, 3))
    assert seen == [(2, 2)]
    assert notes.around(_pair, "a").__code__ is plain.__code__  # the profiler knows calls by it


def test_the_code_of_a_seam_is_kept_apart_by_whether_it_observes_results() -> None:
    notes = Notes()
    assert notes.around(_triple, "a", see=lambda first, value: value)(1) == (1, 1, 1)
    assert notes.around(_triple, "a")(2) == (2, 2, 2)


def test_a_function_that_names_itself_means_the_global_function() -> None:
    notes = Notes()
    made = notes.around(_countdown, "n")
    assert made(3) == 3
    assert len(notes.log) == 2


def test_a_function_with_a_closure_is_refused() -> None:
    outside = 3

    def closes() -> int:
        return outside

    with pytest.raises(ValueError, match="closes over"):
        Notes().around(closes)


def test_a_function_without_source_is_refused() -> None:
    space: dict[str, Any] = {}
    exec("def made(a):\n    return a\n", space)
    with pytest.raises(ValueError, match="no source"):
        Notes().around(space["made"], "a")


@pytest.mark.parametrize("style", ["module", "in place", "function", "block"])
def test_dynamo_compiles_as_often_as_without_us(style: str, notes: Notes) -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter, net = CompileCounter(), Net()
    run: Any = net
    if style == "module":
        run = torch.compile(net, backend=counter)
    elif style == "in place":
        net.compile(backend=counter)
    elif style == "function":
        run = torch.compile(lambda x: net(x), backend=counter)
    else:
        net.inner = torch.compile(net.inner, backend=counter)  # type: ignore[assignment]
    for step in range(6):
        notes.gate.closed = step >= 3  # the windows are over
        run(torch.ones(1, 3)).sum().backward()
    assert counter.frame_count == 1


def _sample(a: int, b: int = 2, *, c: int = 3) -> Any:
    """A function with defaults of every kind."""
    if not a:
        return "none"
    return (a, b, c)


def _pair(a: int) -> tuple[int, int]:
    return a, a


def _triple(a: int) -> tuple[int, int, int]:
    return a, a, a


def _countdown(n: int) -> int:
    return 0 if n == 0 else 1 + _countdown(n - 1)
