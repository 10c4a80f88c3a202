"""State that the program hands from step to step through the model's arguments, such as the hidden
state of a recurrent network. A candidate in 16 bits leaves it in 16 bits, and the baseline, which
is timed next, would refuse it; so it is cast back to the type that the baseline has.

The modules get no hooks for it: a program that pickles its model would have to pickle them.
"""

from typing import Any

Types = dict[Any, tuple[Any, ...]]
"""Types of a module's arguments, by their structure."""


class CarriedState:
    """Casts the floating-point arguments of the outermost modules to the types that they had before
    any fix was on."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pytree = torch.utils._pytree
        self._followed: dict[int, tuple[Any, Types]] = {}
        """The modules by their ids: a class with an `__eq__` of its own may have no hash."""
        self._with_floats: set[int] = set()
        """Ids of the modules that were given tensors of floating point."""

    def follow(self, module: Any) -> None:
        """Note the types of the next call's arguments, and cast those of later calls to them."""
        if id(module) not in self._followed and next(module.parameters(), None) is not None:
            self._followed[id(module)] = module, {}

    def settle(self) -> None:
        """Follow only those modules any further that were given tensors of floating point."""
        self._followed = {
            number: one for number, one in self._followed.items() if number in self._with_floats
        }

    def cast(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments of a call with the types that the baseline gives. The first of
        `args` is the module."""
        if not args or id(args[0]) not in self._followed:
            return args, kwargs
        _, types = self._followed[id(args[0])]
        leaves, structure = self._pytree.tree_flatten((args[1:], kwargs))
        now = tuple(self._type_of(one) for one in leaves)
        if any(now):
            self._with_floats.add(id(args[0]))
        known = types.setdefault(structure, now)
        if now == known:
            return args, kwargs
        pairs = zip(leaves, known, strict=True)
        rest, kwargs = self._pytree.tree_unflatten([self._cast(*pair) for pair in pairs], structure)
        return (args[0], *rest), kwargs

    def _type_of(self, value: Any) -> Any:
        is_float = isinstance(value, self._torch.Tensor) and value.is_floating_point()
        return value.dtype if is_float else None

    def _cast(self, value: Any, wanted: Any) -> Any:
        differs = wanted is not None and self._type_of(value) not in (None, wanted)
        return value.to(wanted) if differs else value
