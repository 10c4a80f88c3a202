"""The program as a change sees it, in the trial's own process: the moments at which something can
be changed (a loader is made, an optimizer is made, a model is first called to train), and what
became of it. A change that raises is not applied; the program goes on without it.
"""

import functools
import importlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from ridgeline.harness.capture.places import here
from ridgeline.records.trial import Applied, NotApplied

OPTIMIZERS = (
    "Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD",
    "Rprop",
)  # fmt: skip

NO_MODEL = "no module was called to train"


class Made:
    """An object the program is about to make: `arguments` may be changed."""

    def __init__(self, kind: str, arguments: dict[str, Any], place: str) -> None:
        self.kind = kind
        self.arguments = arguments
        self.place = place


class Model:
    """An outermost module with parameters, at its first training call."""

    def __init__(self, module: Any, args: Any, kwargs: Any, place: str) -> None:
        self.module = module
        self.args = args
        self.kwargs = kwargs
        self.place = place

    @property
    def inner(self) -> Any:
        """Without DDP or the like around it."""
        module = self.module
        while type(module).__name__ in ("DistributedDataParallel", "DataParallel"):
            module = module.module
        return module

    @property
    def device(self) -> str:
        return str(next(self.module.parameters()).device.type)


Fix = Callable[[Any], str]
"""What was done, in words; "" where there was nothing to do."""


class Program:
    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._on_loader: list[tuple[str, Callable[[Made], str]]] = []
        self._on_optimizer: list[tuple[str, Callable[[Made], str]]] = []
        self._on_model: list[tuple[str, Callable[[Model], str]]] = []
        self._on_step: list[Callable[[], None]] = []
        self._met: dict[int, Any] = {}
        """Weakly, by id: a module is not to be hashed, and the id of one that is gone is used
        again (a new model for each fold)."""
        self.half_logits = False
        """A loss that was put on casts large logits itself: autocast leaves them in 16 bits."""
        self._applied: dict[str, list[tuple[str, str]]] = {}
        self._not: dict[str, str] = {}

    def on_loader(self, fix: str, do: Callable[[Made], str]) -> None:
        if not self._on_loader:
            loader = importlib.import_module("torch.utils.data.dataloader")
            self._around(loader.DataLoader, self._on_loader)
        self._on_loader.append((fix, do))
        self._not.setdefault(fix, "the program made no DataLoader")

    def on_optimizer(self, fix: str, do: Callable[[Made], str]) -> None:
        if not self._on_optimizer:
            for name in OPTIMIZERS:
                kind = getattr(self.torch.optim, name, None)
                if kind is not None:
                    self._around(kind, self._on_optimizer)
        self._on_optimizer.append((fix, do))
        self._not.setdefault(fix, "the program made no optimizer it is for")

    def on_model(self, fix: str, do: Callable[[Model], str]) -> None:
        self._on_model.append((fix, do))
        self._not.setdefault(fix, NO_MODEL)

    def on_step(self, do: Callable[[], None]) -> None:
        self._on_step.append(do)

    def after_first_step(self, fix: str, look: Callable[[], None]) -> None:
        """Once: by then the program has set what it sets itself."""
        self.found_nothing(fix, "no step ended: whether the program sets it was not seen")
        looks = [look]
        self.on_step(lambda: looks.pop()() if looks else None)

    def did(self, fix: str, what: str, place: str = "") -> None:
        self._applied.setdefault(fix, []).append((what, place))

    def found_nothing(self, fix: str, why: str) -> None:
        self._not[fix] = why

    def no_model(self, why: str) -> None:
        """Why no module was met, where that can be told."""
        for fix, said in self._not.items():
            if said == NO_MODEL:
                self._not[fix] = why

    def call_begins(self, module: Any, args: Any, kwargs: Any) -> None:
        """Of an outermost module that trains."""
        if not self._on_model or self._known(module):
            return
        if next(module.parameters(), None) is None:
            return  # a loss
        model = Model(module, args, kwargs, here())
        for fix, do in self._on_model:
            self._try(fix, do, model, model.place)

    def _known(self, module: Any) -> bool:
        before = self._met.get(id(module))
        if before is not None and before() is module:
            return True
        try:
            self._met[id(module)] = weakref.ref(module)
        except TypeError:  # a class without room for one
            self._met[id(module)] = lambda: module
        return False

    def step_ended(self) -> None:
        for do in self._on_step:
            do()

    def outcome(self) -> tuple[tuple[Applied, ...], tuple[NotApplied, ...]]:
        applied = tuple(
            Applied(
                fix=fix,
                what="; ".join(dict.fromkeys(what for what, _ in done)),
                places=tuple(dict.fromkeys(place for _, place in done if place)),
            )
            for fix, done in self._applied.items()
        )
        left = [name for name in self._not if name not in self._applied]
        return applied, tuple(NotApplied(fix=name, why=self._not[name]) for name in left)

    def _around(self, kind: Any, doing: list[tuple[str, Callable[[Made], str]]]) -> None:
        """Its constructor, subclasses' calls of it included."""
        theirs = kind.__init__
        signature = inspect.signature(theirs)

        @functools.wraps(theirs)
        def __init__(self_: Any, *args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(self_, *args, **kwargs)
            except TypeError:
                theirs(self_, *args, **kwargs)  # which says what is wrong
                return
            given = dict(bound.arguments)
            given.pop(next(iter(signature.parameters)))
            given.update(given.pop("kwargs", {}))
            made = Made(kind.__name__, given, here())
            for fix, do in doing:
                self._try(fix, do, made, made.place)
            theirs(self_, **made.arguments)

        kind.__init__ = __init__

    def _try(self, fix: str, do: Fix, given: Any, place: str) -> None:
        before = dict(given.arguments) if isinstance(given, Made) else None
        try:
            what = do(given)
        except Exception as error:
            if before is not None:
                given.arguments = before
            self._not[fix] = f"it could not be put on: {type(error).__name__}: {error}"[:300]
            return
        if what:
            self.did(fix, what, place)
        elif fix in self._not and self._not[fix].startswith(("the program made", "no module")):
            self._not[fix] = "what it would set is set already"
