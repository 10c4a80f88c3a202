"""The cache of keys and values that `generate` of Hugging Face transformers has, where the program
turned it off: training scripts write `use_cache = False` into the model's configuration, and texts
that are written later compute every token anew at each token."""

from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.model_edits import generate_edits
from ridgeline.fixes.program import Program
from ridgeline.harness.capture.places import user_line
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied

OPTION = "use_cache"
WHY = "each token is computed once, not again for each one after it"
FIX = Fix(
    id="kv-cache",
    group="model",
    title="KV cache in generate",
    usual=True,
    alters="rounding",
    answers=("decoding-without-cache",),
    together=("static-cache",),
    why="Keys and values of the tokens so far are kept, so that each call computes one token a row "
    "and not the whole text.",
    wrong_when="The cache does not fit into memory.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.trains:
        return because(Skip.TRAINS)
    if not any(module.generates for module in ground.modules):
        return because(Skip.DOES_NOT_GENERATE)
    found = "decoding-without-cache" in ground.findings
    return None if found else because(Skip.ALREADY_SET, setting=OPTION)


def apply(program: Program, options: Mapping[str, str]) -> None:
    def use_cache(model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        config = given.get("generation_config") or getattr(model, "generation_config", None)
        value = given.get(OPTION)
        value = getattr(config, OPTION, None) if value is None else value
        if value is not False:
            program.found_nothing(FIX.id, because(Skip.ALREADY_SET, setting=OPTION))
            return
        given[OPTION] = True
        program.did(FIX.id, because(Done.KV_CACHE, model=type(model).__name__), user_line())

    program.found_nothing(FIX.id, because(Skip.DOES_NOT_GENERATE))
    program.before_generate(use_cache)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return generate_edits(applied, source, OPTION, "True", WHY)
