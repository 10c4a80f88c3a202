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
from collections.abc import Callable, Iterator
from typing import Any

from ridgeline.fixes.step_function import StepFunction

EAGER = 2
"""Steps before the one that is looked at."""
_streams: dict[Any, Any] = {}
"""One for a device: each stream that multiplies keeps 32 MiB for cuBLAS, to the process's end."""
_PLAIN = (bool, int, float, str, bytes, type(None))


class Refused(RuntimeError):
    """The step does what a graph cannot."""


class StepGraph:
    """Called with a batch. What it returns is written again by the next call."""

    def __init__(self, torch: Any, step: StepFunction, captured: Callable[[str], None]) -> None:
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
            if self._taken <= EAGER:
                return self._aside(lambda: self._step.run(batch))
            if self._taken == EAGER + 1:
                return self._looked_at(batch)
            self._capture(batch)
        elif signature(self._torch, batch) != self._signature:
            return self._step.run(batch)
        self._fill(batch)
        self._graph.replay()
        self._step.replayed()
        return self._found

    def _aside(self, do: Callable[[], Any]) -> Any:
        cuda = self._torch.cuda
        self._stream.wait_stream(cuda.current_stream(self._device))
        with cuda.stream(self._stream):
            found = do()
        cuda.current_stream(self._device).wait_stream(self._stream)
        return found

    def _looked_at(self, batch: Any) -> Any:
        """A step like those before, in which nothing may wait."""
        self._make_places(batch)
        step = self._step
        names, settings = dict(step.bindings()), _settings(step.optimizer)
        with step.recorded(), _nothing_waits(self._torch):
            found = self._aside(lambda: step.run(self._given))
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
        """Nothing is computed here: replaying it is this batch's step."""
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
        # Those it adds to must stay where they are.
        self._grads = [g for p, g in zip(every, before, strict=True) if p.grad is g]
        self._found = _detached(torch, found)
        self._captured(f"the whole step captured, {len(every)} parameters")

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
        """The device's generator still takes itself to be captured, until a capture ends well."""
        torch = self._torch
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._stream):
            torch.zeros(1, device=self._device)

    def _make_places(self, batch: Any) -> None:
        """Tensors that stay where they are, for each batch to be copied into."""
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
    """What a graph is made for: shapes, types, layouts; and what is no tensor, by its value."""
    from torch.utils._pytree import tree_flatten

    leaves, spec = tree_flatten(batch)
    told = tuple(
        (leaf.shape, leaf.dtype, leaf.stride())
        if isinstance(leaf, torch.Tensor)
        else (type(leaf).__name__, leaf if isinstance(leaf, _PLAIN) else None)
        for leaf in leaves
    )
    return spec, told


def _settings(optimizer: Any) -> list[Any]:
    """Numbers that a graph takes up once: learning rates, decays. Tensors it reads each time."""
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
    """Whatever waits for the device raises. torch tells of operators that do, not of its
    synchronize functions."""
    owners = (torch.cuda, torch.cuda.Stream, torch.cuda.Event)
    theirs = [owner.synchronize for owner in owners]
    mode = torch.cuda.get_sync_debug_mode()

    def synchronize(*given: Any, **named: Any) -> None:
        raise Refused("the step waits for the device itself (synchronize), which a graph cannot")

    for owner in owners:
        owner.synchronize = synchronize
    try:
        _tell(torch, "error")
        yield
    except RuntimeError as error:
        if "synchronizing CUDA operation" in str(error):
            raise Refused(
                "the step waits for a number of the device's (.item(), a copy, a print), which a "
                "graph cannot"
            ) from error
        raise
    finally:
        _tell(torch, mode)
        for owner, one in zip(owners, theirs, strict=True):
            owner.synchronize = one


def _tell(torch: Any, mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is a prototype, torch says each time
        torch.cuda.set_sync_debug_mode(mode)
