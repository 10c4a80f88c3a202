"""A static cache of keys and values for `generate` of Hugging Face transformers. Its size stays,
and so `generate` compiles the decoding by itself, with CUDA graphs: on a GPU alone, since on a CPU
it compiles nothing (a static cache by itself took 1.2 times as long there)."""

from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.compiling import bound
from ridgeline.fixes.compiling import reason_to_skip as reason_not_to_compile
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.model_edits import generate_edits
from ridgeline.fixes.program import Program
from ridgeline.harness.capture.places import user_line
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied

__all__ = ["FIX", "apply", "bound", "reason_to_skip", "source_edits"]
OPTION, VALUE = "cache_implementation", "static"
WHY = "keys and values keep their place, so that decoding is compiled into one launch a token"
_CACHES = ("past_key_values", "cache_params")
_OTHER_DECODING = (
    "assistant_model", "prompt_lookup_num_tokens", "custom_generate", "penalty_alpha",
    "dola_layers",
)  # fmt: skip
"""Arguments that choose another way to decode, which rolls the cache back or keeps its own."""
FIX = Fix(
    id="static-cache",
    group="model",
    title="static KV cache, compiled decoding",
    alters="rounding",
    slot="compile",
    answers=("cuda-graph-candidate", "small-kernels"),
    slow_start=True,
    why="A cache that grows by a token has another size at each step. One of a fixed size lets "
    "`generate` compile the model for a single token and launch it as one CUDA graph.",
    wrong_when="Requests differ much in length: each token attends over the longest one so far, "
    "and a longer request compiles again.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.trains:
        return because(Skip.TRAINS)
    if not any(module.generates for module in ground.modules):
        return because(Skip.DOES_NOT_GENERATE)
    if ground.device != "cuda":
        return because(Skip.NO_GPU)
    return reason_not_to_compile(ground)


def apply(program: Program, options: Mapping[str, str]) -> None:
    def make_static(model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        try:
            obstacle = _obstacle(model, given)
            if obstacle is not None:
                program.found_nothing(FIX.id, obstacle)
                return
            given[OPTION] = VALUE
        except Exception as error:
            program.failed(FIX.id, error)
            return
        name, place = type(model).__name__, user_line()
        program.did(FIX.id, because(Done.STATIC_CACHE, model=name), place)

    program.found_nothing(FIX.id, because(Skip.DOES_NOT_GENERATE))
    program.before_generate(make_static)


def _obstacle(model: Any, given: Mapping[str, Any]) -> Reason | None:
    """Return why the cache of this call stays as it is."""
    config = given.get("generation_config") or getattr(model, "generation_config", None)

    def setting(name: str, default: Any = None) -> Any:
        value = given.get(name)
        value = getattr(config, name, None) if value is None else value
        return default if value is None else value

    chosen = setting(OPTION)
    if chosen is not None:
        return because(Skip.ALREADY_SET, setting=f'{OPTION}="{chosen}"')
    if any(given.get(name) is not None for name in _CACHES):
        return because(Skip.OWN_CACHE)
    if setting("use_cache", True) is False:
        return because(Skip.NO_CACHE)
    beams = setting("num_beams", 1) > 1
    if beams or any(setting(name) is not None for name in _OTHER_DECODING):
        return because(Skip.OTHER_DECODING)
    name = type(model).__name__
    # Before transformers 4.53 a model said `_supports_static_cache`; since then it says whether it
    # compiles as one graph, which is the same question.
    supports = getattr(model, "_supports_static_cache", None)
    supports = getattr(model, "_can_compile_fullgraph", True) if supports is None else supports
    return None if supports else because(Skip.NO_STATIC_CACHE, model=name)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return generate_edits(applied, source, OPTION, f'"{VALUE}"', WHY)
