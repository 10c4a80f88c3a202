"""The program of a trial as a fix sees it: the moments at which something can be changed (a loader
is made, an optimizer is made, a model is first called to train), and what each fix did or why it
did nothing. A fix that raises is not applied; the program goes on without it.
"""

import functools
import importlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from ridgeline.harness.capture.places import user_line
from ridgeline.harness.capture.text_generation import OnGenerate, before_generate
from ridgeline.records.facts import Place, Reason, because
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied, FixTarget, NotApplied

OPTIMIZERS = (
    "Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD",
    "Rprop",
)  # fmt: skip
MAX_ERROR_CHARS = 300
"""An error message is cut to this length in a trial's record."""
_DONE = frozenset(code.value for code in Done)
_NOT_MET = frozenset((Skip.NO_LOADER, Skip.NO_KNOWN_OPTIMIZER, Skip.NO_MODEL_CALL))
"""Reasons that hold until the program makes or calls what a fix waits for."""


_WRAPPERS = ("DistributedDataParallel", "DataParallel", "_FabricModule")
"""Classes that hold a model as `module` and call it."""


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
        """The module without DDP or the like around it. A DataParallel on several devices stays:
        it calls copies of its module, whose forward would still be that of the original."""
        module = self.module
        while type(module).__name__ in _WRAPPERS and not is_replicated(module):
            module = module.module
        return module

    @property
    def name(self) -> str:
        """The name of the model's class."""
        module = self.inner
        return type(module.module if is_replicated(module) else module).__name__

    @property
    def device(self) -> str:
        return str(next(self.module.parameters()).device.type)

    @property
    def fills_cache(self) -> bool:
        """Whether it is given a cache of keys and values, which each call would fill further."""
        given = (*self.args, *self.kwargs.values())
        return any(hasattr(one, "get_seq_length") for one in given)


def is_replicated(module: Any) -> bool:
    """Return whether it is a DataParallel that copies its module to several devices."""
    return type(module).__name__ == "DataParallel" and len(module.device_ids) > 1


Outcome = Reason | tuple[Reason, ...] | None
"""What a fix did to an object: one or more reasons with a code of `Done`; a reason with a code of
`Skip` if it left the object as it is; None if the program has set already what the fix would set.
"""
OnMade = Callable[[Made], Outcome]
OnModel = Callable[[Model], Outcome]


class Program:
    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._on_loader: list[tuple[str, OnMade]] = []
        self._on_optimizer: list[tuple[str, OnMade]] = []
        self._on_model: list[tuple[str, OnModel]] = []
        self._on_step: list[Callable[[], None]] = []
        self._met: dict[int, Any] = {}
        """Weak references to modules by id. A module is not hashed, and the id of a module that is
        gone is used again (a new model for each fold)."""
        self.half_logits = False
        """Whether a loss casts large logits itself, so that autocast leaves them in 16 bits."""
        self._applied: dict[str, list[FixTarget]] = {}
        self._not: dict[str, Reason] = {}

    def on_loader(self, fix: str, do: OnMade) -> None:
        if not self._on_loader:
            loader = importlib.import_module("torch.utils.data.dataloader")
            self._wrap_constructor(loader.DataLoader, self._on_loader)
        self._on_loader.append((fix, do))
        self._not.setdefault(fix, because(Skip.NO_LOADER))

    def on_optimizer(self, fix: str, do: OnMade) -> None:
        if not self._on_optimizer:
            for name in OPTIMIZERS:
                kind = getattr(self.torch.optim, name, None)
                if kind is not None:
                    self._wrap_constructor(kind, self._on_optimizer)
        self._on_optimizer.append((fix, do))
        self._not.setdefault(fix, because(Skip.NO_KNOWN_OPTIMIZER))

    def on_model(self, fix: str, do: OnModel) -> None:
        self._on_model.append((fix, do))
        self._not.setdefault(fix, because(Skip.NO_MODEL_CALL))

    def before_generate(self, do: OnGenerate) -> None:
        """Call `do` before each `generate` of a model of Hugging Face transformers."""
        before_generate(do)

    def on_step(self, do: Callable[[], None]) -> None:
        self._on_step.append(do)

    def after_first_step(self, fix: str, look: Callable[[], None]) -> None:
        """Call `look` once, when the program has set whatever it sets itself."""
        self.found_nothing(fix, because(Skip.NO_STEP_ENDED))
        looks = [look]
        self.on_step(lambda: looks.pop()() if looks else None)

    def did(self, fix: str, done: Reason, place: str = "") -> None:
        targets = self._applied.setdefault(fix, [])
        target = FixTarget(done=done, place=Place.parse(place))
        if target not in targets:
            targets.append(target)

    def found_nothing(self, fix: str, reason: Reason) -> None:
        self._not[fix] = reason

    def failed(self, fix: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
        self.found_nothing(fix, because(Skip.FAILED_TO_APPLY, error=text))

    def no_model(self, reason: Reason) -> None:
        """Give fixes that wait for a model a better reason why none was met."""
        for fix, known in self._not.items():
            if known.code == Skip.NO_MODEL_CALL:
                self._not[fix] = reason

    def call_begins(self, module: Any, args: Any, kwargs: Any) -> None:
        """An outermost module that trains is about to be called."""
        if not self._on_model or self._known(module):
            return
        if next(module.parameters(), None) is None:
            return  # a loss
        model = Model(module, args, kwargs, user_line())
        for fix, do in self._on_model:
            self._try(fix, do, model, model.place)

    def waits_for(self, module: Any) -> bool:
        """Return whether a fix has yet to look at this module."""
        met = self._met.get(id(module))
        is_met = met is not None and met() is module
        return bool(self._on_model) and not is_met

    def _known(self, module: Any) -> bool:
        before = self._met.get(id(module))
        if before is not None and before() is module:
            return True
        try:
            self._met[id(module)] = weakref.ref(module)
        except TypeError:  # a class without room for a weak reference
            self._met[id(module)] = lambda: module
        return False

    def step_ended(self) -> None:
        for do in self._on_step:
            do()

    def outcome(self) -> tuple[tuple[Applied, ...], tuple[NotApplied, ...]]:
        applied = tuple(
            Applied(fix=fix, targets=tuple(targets)) for fix, targets in self._applied.items()
        )
        left = [fix for fix in self._not if fix not in self._applied]
        return applied, tuple(NotApplied(fix=fix, reason=self._not[fix]) for fix in left)

    def _wrap_constructor(self, kind: Any, doing: list[tuple[str, OnMade]]) -> None:
        """Let fixes change what the constructor is given, when subclasses call it too."""
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
            made = Made(kind.__name__, given, user_line())
            for fix, do in doing:
                self._try(fix, do, made, made.place)
            theirs(self_, **made.arguments)

        kind.__init__ = __init__

    def _try(self, fix: str, do: Callable[[Any], Outcome], given: Any, place: str) -> None:
        before = dict(given.arguments) if isinstance(given, Made) else None
        try:
            outcome = do(given)
        except Exception as error:
            if before is not None:
                given.arguments = before
            self.failed(fix, error)
            return
        if outcome is None:
            if fix in self._not and self._not[fix].code in _NOT_MET:
                self.found_nothing(fix, because(Skip.NOTHING_LEFT_TO_SET))
            return
        for one in outcome if isinstance(outcome, tuple) else (outcome,):
            if one.code in _DONE:
                self.did(fix, one, place)
            else:
                self.found_nothing(fix, one)
