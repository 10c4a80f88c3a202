"""A whole training step as one CUDA graph: forward, backward, clipping and update launched at once.

The first steps run as they are, on a stream of their own, as capturing asks for: they are real
steps, and make what is made lazily (moments, handles of libraries). One more is looked at for what
a graph cannot do: wait for the device, set a name in Python, change a setting of the optimizer. It
raises then, before anything is captured: a capture that fails may leave the device's random
numbers unusable. Then a step is captured, and every batch of that shape is copied into its place
and the graph run; another shape, an epoch's last batch, runs as it is.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

Run = Callable[[Any], Any]
"""One step with one batch."""
EAGER_STEPS = 2
"""Steps that run before the one that is looked at."""
_streams: dict[Any, Any] = {}
"""One stream per device: each that multiplies keeps 32 MiB for cuBLAS until the process ends."""
_PLAIN = (bool, int, float, str, bytes, type(None))


class StepFunction(Protocol):
    """A step given as a function. Only such a step can be captured whole: the loop of a script is
    the program's own."""

    model: Any
    optimizer: Any
    fixes: tuple[str, ...]
    """Ids of the fixes that are on."""

    def run(self, batch: Any) -> Any:
        """Run the user's own function, with the fixes applied."""

    def recorded(self) -> AbstractContextManager[None]:
        """Let a step inside be remembered and not looked at: it runs later."""

    def replayed(self) -> None:
        """Note that the remembered step has run, so that its results can be read."""

    def bindings(self) -> Mapping[str, Any]:
        """Return what the names that the step can reach stand for."""


class Refused(RuntimeError):
    """The step does something that a graph cannot do."""


class StepGraph:
    """A step that is called with a batch. What it returns is overwritten by the next call."""

    def __init__(self, torch: Any, step: StepFunction, captured: Callable[[int], None]) -> None:
        self._torch = torch
        self._step = step
        self._captured = captured
        self._device = next(step.model.parameters()).device
        self._stream = _stream(torch, self._device)
        self._taken = 0
        self._graph: Any = None
        self._signature: Any = None
        self._places: list[Any] = []
        self._given: Any = None
        self._found: Any = None
        self._grads: list[Any] = []

    def __call__(self, batch: Any) -> Any:
        if self._graph is None:
            self._taken += 1
            if self._taken <= EAGER_STEPS:
                return self._on_own_stream(lambda: self._step.run(batch))
            if self._taken == EAGER_STEPS + 1:
                return self._checked_step(batch)
            self._capture(batch)
        elif signature(self._torch, batch) != self._signature:
            return self._step.run(batch)
        self._fill(batch)
        self._graph.replay()
        self._step.replayed()
        return self._found

    def _on_own_stream(self, do: Callable[[], Any]) -> Any:
        cuda = self._torch.cuda
        self._stream.wait_stream(cuda.current_stream(self._device))
        with cuda.stream(self._stream):
            found = do()
        cuda.current_stream(self._device).wait_stream(self._stream)
        return found

    def _checked_step(self, batch: Any) -> Any:
        """Run a step in which nothing may wait for the device."""
        self._make_places(batch)
        step = self._step
        names, settings = dict(step.bindings()), _settings(step.optimizer)
        with step.recorded(), _nothing_waits(self._torch):
            found = self._on_own_stream(lambda: step.run(self._given))
        step.replayed()
        if _settings(step.optimizer) != settings:
            raise Refused("a setting of the optimizer changes in each step, and a graph keeps one")
        now = step.bindings()
        changed = [name for name, value in now.items() if names.get(name) != value]
        if changed:
            name = changed[0].partition(" (")[0]
            raise Refused(f"the step sets {name} in Python, which a graph does not run")
        return found

    def _capture(self, batch: Any) -> None:
        """Capture a step. Nothing is computed here: replaying the graph is this batch's step."""
        torch, step = self._torch, self._step
        if signature(torch, batch) != self._signature:
            self._make_places(batch)
        every = [p for group in step.optimizer.param_groups for p in group["params"]]
        before = [p.grad for p in every]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with step.recorded():
            found = self._recorded_in(graph)
        self._graph = graph
        # The tensors that it adds to must stay where they are.
        self._grads = [g for p, g in zip(every, before, strict=True) if p.grad is g]
        self._found = _detached(torch, found)
        self._captured(len(every))

    def _recorded_in(self, graph: Any) -> Any:
        torch = self._torch
        current = torch.cuda.current_stream(self._device)
        failed: Exception | None = None
        try:
            # A loader's thread that pins memory calls CUDA too: that must not end the capture.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                try:
                    return self._step.run(self._given)
                except Exception as error:
                    failed = error
                    raise
        except Exception as error:  # torch's own, of the capture, hides the first
            torch.cuda.set_stream(current)
            with contextlib.suppress(Exception):
                self._recover()
            why = str(failed or error).partition("\n")[0]
            raise Refused(f"the step cannot be captured: {why}") from (failed or error)

    def _recover(self) -> None:
        """Capture something that works: until then the device's generator takes itself to be
        captured."""
        torch = self._torch
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._stream):
            torch.zeros(1, device=self._device)

    def _make_places(self, batch: Any) -> None:
        """Make tensors that stay where they are, into which each batch is copied."""
        from torch.utils._pytree import tree_flatten, tree_unflatten

        torch = self._torch
        leaves, spec = tree_flatten(batch)
        for leaf in leaves:
            if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
                kind = type(leaf).__name__
                raise Refused(f"a batch holds a {kind}, whose tensors have no fixed places")
        placed = [
            leaf.to(self._device, copy=True) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves
        ]
        self._places = [leaf for leaf in placed if isinstance(leaf, torch.Tensor)]
        self._given = tree_unflatten(placed, spec)
        self._signature = signature(torch, batch)

    def _fill(self, batch: Any) -> None:
        from torch.utils._pytree import tree_flatten

        torch = self._torch
        given = [leaf for leaf in tree_flatten(batch)[0] if isinstance(leaf, torch.Tensor)]
        with torch.no_grad():
            for place, tensor in zip(self._places, given, strict=True):
                place.copy_(tensor, non_blocking=True)


def _stream(torch: Any, device: Any) -> Any:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def signature(torch: Any, batch: Any) -> Any:
    """Return what a graph is made for: shapes, types and layouts, and the values that are not
    tensors."""
    from torch.utils._pytree import tree_flatten

    leaves, spec = tree_flatten(batch)
    leaves_seen = tuple(
        (leaf.shape, leaf.dtype, leaf.stride())
        if isinstance(leaf, torch.Tensor)
        else (type(leaf).__name__, leaf if isinstance(leaf, _PLAIN) else None)
        for leaf in leaves
    )
    return spec, leaves_seen


def _settings(optimizer: Any) -> list[Any]:
    """Return the numbers that a graph takes up once: learning rates, decays. It reads tensors each
    time."""
    return [
        (name, value)
        for group in optimizer.param_groups
        for name, value in group.items()
        if isinstance(value, bool | int | float | tuple)
    ]


def _detached(torch: Any, found: Any) -> Any:
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach(), found)


@contextlib.contextmanager
def _nothing_waits(torch: Any) -> Iterator[None]:
    """Let whatever waits for the device raise. torch reports operators that wait, but not its
    synchronize functions."""
    owners = (torch.cuda, torch.cuda.Stream, torch.cuda.Event)
    theirs = [owner.synchronize for owner in owners]
    mode = torch.cuda.get_sync_debug_mode()

    def synchronize(*given: Any, **named: Any) -> None:
        raise Refused("the step waits for the device itself (synchronize), which a graph cannot")

    for owner in owners:
        owner.synchronize = synchronize
    try:
        _set_sync_mode(torch, "error")
        yield
    except RuntimeError as error:
        if "synchronizing CUDA operation" in str(error):
            raise Refused(
                "the step waits for a number of the device's (.item(), a copy, a print), which a "
                "graph cannot"
            ) from error
        raise
    finally:
        _set_sync_mode(torch, mode)
        for owner, one in zip(owners, theirs, strict=True):
            owner.synchronize = one


def _set_sync_mode(torch: Any, mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says each time that this is a prototype
        torch.cuda.set_sync_debug_mode(mode)
