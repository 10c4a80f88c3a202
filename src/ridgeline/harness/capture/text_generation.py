"""Seams in Hugging Face transformers, put on when the program imports it: its `generate`, and the
compiled decoding inside.

On a GPU, with a static cache, `generate` runs `torch.compile(model.__call__)` for each token after
the first. torch.compile traces the body of nn.Module.__call__ alone, so that the seam there hears
nothing of those calls: a program would have one step a request and not one a token.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

GENERATION = "transformers.generation.utils"
MODELS = "transformers.modeling_utils"
_DOING = "_ridgeline_before"
OnGenerate = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
"""Called before each `model.generate(*args, **kwargs)`; it may change `kwargs`."""


def before_generate(do: OnGenerate) -> None:
    """Call `do` before each call of `generate` of any model of transformers, after what was given
    here earlier."""

    def wrap(module: ModuleType) -> None:
        owner = module.GenerationMixin
        theirs = owner.generate
        doing = getattr(theirs, _DOING, None)
        if doing is not None:
            doing.append(do)
            return
        doing = [do]

        @functools.wraps(theirs)
        def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
            for one in doing:
                one(self, args, kwargs)
            return theirs(self, *args, **kwargs)

        setattr(generate, _DOING, doing)
        owner.generate = generate

    when_imported(GENERATION, wrap)


def follow_generate(enter: Callable[[], None], leave: Callable[[], None]) -> None:
    """Call `enter` when a `generate` of a model of transformers begins, and `leave` when it ends.
    What `before_generate` is given later is called before `enter`."""

    def wrap(module: ModuleType) -> None:
        owner = module.GenerationMixin
        theirs = owner.generate

        @functools.wraps(theirs)
        def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
            enter()
            try:
                return theirs(self, *args, **kwargs)
            finally:
                leave()

        vars(generate).pop(_DOING, None)
        owner.generate = generate

    when_imported(GENERATION, wrap)


def show_compiled_decoding(
    is_closed: Callable[[], bool],
    enter: Callable[[Any, Any, Any], Any],
    leave: Callable[[Any], None],
    see: Callable[[Any, Any], Any] | None,
) -> None:
    """Let the seam of module calls hear the calls that `generate` compiles, unless it `is_closed`:
    see `instrumented` for `enter`, `leave` and `see`."""

    def wrap(module: ModuleType) -> None:
        owner = module.PreTrainedModel
        theirs = getattr(owner, "get_compiled_call", None)
        if theirs is None:  # before transformers 4.48
            return

        @functools.wraps(theirs)
        def get_compiled_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            compiled = theirs(self, *args, **kwargs)

            def call(*args: Any, **kwargs: Any) -> Any:
                if is_closed():
                    return compiled(*args, **kwargs)
                token = enter(self, args, kwargs)
                try:
                    value = compiled(*args, **kwargs)
                    return value if see is None else see(self, value)
                finally:
                    leave(token)

            plain = compiled == self.__call__  # which has the seam already
            return compiled if plain else call

        owner.get_compiled_call = get_compiled_call

    when_imported(MODELS, wrap)


def when_imported(name: str, do: Callable[[ModuleType], None]) -> None:
    """Call `do` with a module: at once if it is imported, else after its code has run. A fault of
    `do` stays hidden from the program that imports the module."""
    module = sys.modules.get(name)
    if module is not None:
        do(module)
    else:
        sys.meta_path.insert(0, _Finder(name, do))


class _Finder:
    """Finds one module by the other finders, and notices when its code has run."""

    def __init__(self, name: str, do: Callable[[ModuleType], None]) -> None:
        self._name, self._do = name, do
        self._inside = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name or self._inside:
            return None
        self._inside = True  # the other finders may be asked in the course of this
        try:
            return self._heard_spec()
        except Exception:
            return None  # the other finders answer, or raise what is wrong with the module
        finally:
            self._inside = False

    def _heard_spec(self) -> Any:
        spec = importlib.util.find_spec(self._name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._listen(spec.loader)
        return spec

    def _listen(self, loader: Any) -> None:
        theirs = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            try:
                theirs(module)
            except BaseException as error:
                trace = error.__traceback__
                error.__traceback__ = trace and trace.tb_next  # without this frame of ours
                raise
            try:
                self._do(module)
            except Exception as error:
                print(f"ridgeline: {self._name} is not followed: {error}", file=sys.stderr)

        try:  # noqa: SIM105
            loader.exec_module = exec_module
        except AttributeError:
            pass  # a custom loader that accepts no attributes
