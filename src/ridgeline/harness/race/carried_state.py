"""State that the program hands from step to step through the model's arguments, such as the hidden
state of a recurrent network. A candidate in 16 bits leaves it in 16 bits, and the baseline, which
is timed next, would refuse it; so it is cast back to the type that the baseline has."""

from typing import Any


class CarriedState:
    """Casts the floating-point arguments of the outermost modules to the types that they had before
    any fix was on."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pytree = torch.utils._pytree
        self._followed: dict[int, tuple[Any, Any]] = {}
        """The modules by their ids, each with its hook."""
        self._with_floats: set[int] = set()
        """Ids of the modules that were given tensors of floating point."""

    def follow(self, module: Any) -> None:
        """Note the types of the next call's arguments, and cast those of later calls to them."""
        if id(module) in self._followed or next(module.parameters(), None) is None:
            return
        types: dict[Any, tuple[Any, ...]] = {}
        """The types of the arguments, by their structure."""

        def cast(module: Any, args: Any, kwargs: Any) -> Any:
            leaves, structure = self._pytree.tree_flatten((args, kwargs))
            now = tuple(self._type_of(one) for one in leaves)
            if any(now):
                self._with_floats.add(id(module))
            known = types.setdefault(structure, now)
            if now == known:
                return None
            pairs = zip(leaves, known, strict=True)
            return self._pytree.tree_unflatten([self._cast(*pair) for pair in pairs], structure)

        hook = module.register_forward_pre_hook(cast, with_kwargs=True)
        self._followed[id(module)] = module, hook

    def settle(self) -> None:
        """Follow only those modules any further that were given tensors of floating point."""
        for number, (_, hook) in self._followed.items():
            if number not in self._with_floats:
                hook.remove()

    def release(self) -> None:
        """Leave all modules alone."""
        for _, hook in self._followed.values():
            hook.remove()

    def _type_of(self, value: Any) -> Any:
        is_float = isinstance(value, self._torch.Tensor) and value.is_floating_point()
        return value.dtype if is_float else None

    def _cast(self, value: Any, wanted: Any) -> Any:
        differs = wanted is not None and self._type_of(value) not in (None, wanted)
        return value.to(wanted) if differs else value
