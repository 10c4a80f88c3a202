"""Objects that exist already as a fix sees them: a loader is copied with other arguments, and an
optimizer is altered as if its constructor had been given them."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from ridgeline.fixes.program import OPTIMIZERS, Made, OnMade, Outcome, Program
from ridgeline.harness.capture.text_generation import OnGenerate, before_generate
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Skip

SETTINGS = (
    "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "worker_init_fn",
    "collate_fn", "timeout", "drop_last", "generator",
)  # fmt: skip
"""Arguments of a DataLoader that it keeps under their own names."""
_DEFAULT_PREFETCH = 2
"""Batches that a worker makes ahead by default. The constructor sets it, and a copy does not."""


def loader_arguments(torch: Any, loader: Any) -> dict[str, Any]:
    """Return the arguments that a loader was made with, as far as they decide anything."""
    arguments = {name: getattr(loader, name, None) for name in SETTINGS}
    arguments["multiprocessing_context"] = getattr(loader, "multiprocessing_context", None)
    arguments["dataset"], arguments["batch_size"] = loader.dataset, loader.batch_size
    data = torch.utils.data
    if type(loader.sampler) not in (data.RandomSampler, data.SequentialSampler):
        arguments["sampler"] = loader.sampler
    if loader.batch_size is None:
        arguments["batch_sampler"] = loader.batch_sampler
    return arguments


def with_settings(loader: Any, before: dict[str, Any], after: dict[str, Any]) -> Any:
    """Return a copy of the loader with the settings that differ between `before` and `after`. The
    user's own loader is never iterated, so that its workers and its position stay its own."""
    other = copy.copy(loader)
    held = other.__dict__  # the attributes themselves refuse to be set
    held["_iterator"] = None
    for name, value in after.items():
        if value is not before.get(name):
            if name not in (*SETTINGS, "batch_size"):
                raise ValueError(f"{name} of a loader that is made already")
            held[name] = value
    if after.get("batch_size") != before.get("batch_size"):
        batches = type(loader.batch_sampler)
        held["batch_sampler"] = batches(loader.sampler, after["batch_size"], loader.drop_last)
    if not held["num_workers"]:
        held["prefetch_factor"], held["persistent_workers"] = None, False
    elif held["prefetch_factor"] is None:
        held["prefetch_factor"] = _DEFAULT_PREFETCH
    return other


_CONTENTS = ("state", "param_groups", "defaults")


def torch_class_of(torch: Any, optimizer: Any) -> Any:
    """Return torch's own class that an optimizer is derived from; None if there is none."""
    for kind in type(optimizer).__mro__:
        if kind.__name__ in OPTIMIZERS and getattr(torch.optim, kind.__name__, None) is kind:
            return kind
    return None


def optimizer_arguments(optimizer: Any) -> dict[str, Any]:
    """Return the arguments of the first group, which are those of all if all were given the
    same."""
    group = optimizer.param_groups[0]
    arguments = {name: group.get(name, value) for name, value in optimizer.defaults.items()}
    return arguments | {"params": [p for g in optimizer.param_groups for p in g["params"]]}


def alter_optimizer(
    torch: Any, optimizer: Any, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Set up an optimizer that exists as its constructor would have made it with the arguments
    `after`; schedulers and closures know this object. This raises what the constructor raises."""
    changed = {name: value for name, value in after.items() if value is not before.get(name)}
    if not changed:
        return
    kind = torch_class_of(torch, optimizer)
    takes = inspect.signature(kind.__init__).parameters
    made = kind(**{name: value for name, value in after.items() if name in takes})
    for name, value in vars(made).items():
        # The constructor also notes other things, such as that a scaler may leave scaling to it.
        if name not in _CONTENTS and not name.startswith(("_optimizer_", "_zero_grad")):
            vars(optimizer)[name] = value
    # Its first steps run before one is captured: torch need not warn of it.
    vars(optimizer)["_warned_capturable_if_run_uncaptured"] = True
    optimizer.defaults.update(changed)
    for group in optimizer.param_groups:
        for name, value in changed.items():
            if group.get(name) == before.get(name):
                group[name] = value
        on_device = group.get("fused") or group.get("capturable")
        for parameter in group["params"] if on_device else ():
            _step_on_device(torch, optimizer.state.get(parameter, {}), parameter)


def _step_on_device(torch: Any, state: dict[str, Any], parameter: Any) -> None:
    """Move the step count to the device: the kernel that updates cannot read the host's."""
    if "step" in state:
        state["step"] = torch.as_tensor(
            state["step"], dtype=torch.float32, device=parameter.device
        ).clone()


class LiveProgram(Program):
    """A program whose loaders and optimizers were made before the fixes came. Nothing happens when
    a fix asks for them; the caller hands them over."""

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self.is_on = True
        """Whether the fixes are on now: what they do before each `generate` is left out if not."""
        self.recorded: Callable[[Callable[[], None], Any], None] = lambda do, model: do()
        """Called with what a fix does to a model before `generate`, and with that model."""

    def before_generate(self, do: OnGenerate) -> None:
        def do_if_on(model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
            if self.is_on:
                self.recorded(functools.partial(do, model, args, given), model)

        before_generate(do_if_on)

    def on_loader(self, fix: str, do: OnMade) -> None:
        self._on_loader.append((fix, do))
        self._not.setdefault(fix, because(Skip.NO_LOADER))

    def on_optimizer(self, fix: str, do: OnMade) -> None:
        self._on_optimizer.append((fix, do))
        self._not.setdefault(fix, because(Skip.NO_KNOWN_OPTIMIZER))

    def alter_made_optimizer(self, optimizer: Any, place: str = "") -> Made:
        """Let the fixes alter an optimizer of one of torch's classes. Return the arguments that it
        now has."""
        kind = torch_class_of(self.torch, optimizer)
        made = Made(kind.__name__, optimizer_arguments(optimizer), place)
        for fix, do in self._on_optimizer:
            self._try(fix, functools.partial(self._altered, optimizer, do), made, place)
        return made

    def _altered(self, optimizer: Any, do: OnMade, made: Made) -> Outcome:
        before = dict(made.arguments)
        outcome = do(made)
        alter_optimizer(self.torch, optimizer, before, made.arguments)
        return outcome

    def loader_like(self, loader: Any, place: str = "") -> Any:
        """Return a copy of the loader with the settings that the fixes give it."""
        given = loader_arguments(self.torch, loader)
        made = Made("DataLoader", dict(given), place)
        for fix, do in self._on_loader:
            self._try(fix, do, made, place)
        return with_settings(loader, given, made.arguments)
