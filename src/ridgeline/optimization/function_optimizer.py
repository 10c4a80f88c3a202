"""An optimizer that exists already, told something else: the same object, because schedulers and
closures know it, as its constructor would have made it."""

import inspect
from typing import Any

from ridgeline.fixes.program import OPTIMIZERS

_ITS_OWN = ("state", "param_groups", "defaults")


def kind_of(torch: Any, optimizer: Any) -> Any:
    """The class of torch's it is made of; None: none."""
    for kind in type(optimizer).__mro__:
        if kind.__name__ in OPTIMIZERS and getattr(torch.optim, kind.__name__, None) is kind:
            return kind
    return None


def arguments(optimizer: Any) -> dict[str, Any]:
    """Of its first group, which says what all were given where they were given the same."""
    group = optimizer.param_groups[0]
    found = {name: group.get(name, value) for name, value in optimizer.defaults.items()}
    return found | {"params": [p for g in optimizer.param_groups for p in g["params"]]}


def alter(torch: Any, optimizer: Any, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raises what the constructor says of it."""
    changed = {name: value for name, value in after.items() if value is not before.get(name)}
    if not changed:
        return
    kind = kind_of(torch, optimizer)
    takes = inspect.signature(kind.__init__).parameters
    made = kind(**{name: value for name, value in after.items() if name in takes})
    for name, value in vars(made).items():
        # Beside its settings, what the constructor notes: that a scaler may leave scaling to it …
        if name not in _ITS_OWN and not name.startswith(("_optimizer_", "_zero_grad")):
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
    """A count kept by the host cannot be read by the kernel that updates."""
    if "step" in state:
        state["step"] = torch.as_tensor(
            state["step"], dtype=torch.float32, device=parameter.device
        ).clone()
