"""A language model is called for each token with the whole text so far: it has no KV cache, or does
not use the one it has."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import mean

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, gain_without, make_finding, measured, read
from ridgeline.diagnosis.rules._user_code import fix_code, models, place_at, uses_kv_cache
from ridgeline.records.finding import Finding
from ridgeline.records.run import ModuleSeen, Step
from ridgeline.records.trace import Place
from ridgeline.source.file import last_name

MIN_GROWING_STEPS = 8
"""Steps that must be given one token a row more than the step before. Batches of texts whose
lengths differ seldom grow so twice in a row."""
MIN_GROWING_SHARE = 0.5
"""Share of the steps that must grow: a text that fills the model's window grows no longer."""
MIN_SHARE = 0.05

RULE = Rule(id="decoding-without-cache", family="kernels", budget="work", needs=("capture",))


def look(case: Case) -> Iterator[Finding]:
    if case.capture is None or case.capture.stepping != "call":
        return
    growing = growing_steps(case.steps)
    if len(growing) < MIN_GROWING_STEPS:
        return
    tokens, rows = mean(step.tokens for step in growing), mean(step.samples for step in growing)
    repeated = 1 - rows / tokens
    work = case.share_of("compute") + case.share_of("memory")
    share = repeated * work
    if share < MIN_SHARE:
        return
    model, place = _called(case)
    length = tokens / rows
    evidence = [
        measured(
            "tokens a row",
            f"one more at each of {len(growing)} steps, {length:.0f} on average", length,
        ),
        measured("computed again", f"{units.percent(repeated)} of the tokens of a call", repeated),
    ]  # fmt: skip
    source = case.sources.get(place.file) if place is not None else None
    if place is not None and place.line and source is not None:
        evidence.append(read(f"line {place.line}", source.line(place.line).strip()))
    written = model is not None and model.generates and _calls_generate(case, place)
    yield make_finding(
        RULE,
        claim=f"each token computes the whole text again: {length:.0f} tokens a row on average for "
        "a single new one",
        share=share,
        bound=gain_without(repeated * (1 - case.share_of("input"))),
        evidence=evidence,
        place=place,
        fix="kv-cache" if written else "",
        change=(fix_code(case, place, *uses_kv_cache(case)) if written else "") or _advice(model),
        confidence="high",
        doubt="" if written else "the calls of the loop have to be changed by hand",
    )


def growing_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that were given as many rows as the step before, and one token more in each;
    none if most steps of text were not."""
    known = [step for step in steps if step.detailed and step.tokens and step.samples]
    neighbours = [(a, b) for a, b in pairwise(known) if b.index == a.index + 1]
    growing = [
        b for a, b in neighbours if a.samples == b.samples and b.tokens - a.tokens == b.samples
    ]
    return growing if len(growing) >= MIN_GROWING_SHARE * len(neighbours) else []


def _called(case: Case) -> tuple[ModuleSeen | None, Place | None]:
    for model in models(case):
        place = place_at(model.place)
        if place is not None:
            source = case.sources.get(place.file)
            name = source.function_name(place.line or 0) if source is not None else ""
            return model, Place(file=place.file, line=place.line, function=name)
    return None, None


def _calls_generate(case: Case, place: Place | None) -> bool:
    source = case.sources.get(place.file) if place is not None else None
    if source is None or place is None or place.line is None:
        return False
    return any(last_name(call) == "generate" for call in source.calls_on_line(place.line))


def _advice(model: ModuleSeen | None) -> str:
    """Return the code of a loop that uses the cache of a model of transformers, or what a model of
    the program's own must do."""
    if model is not None and model.generates:
        code = (
            "cache = None\n"
            "for _ in range(new_tokens):\n"
            "    given = ids if cache is None else ids[:, -1:]\n"
            "    out = model(given, past_key_values=cache, use_cache=True)\n"
            "    cache = out.past_key_values\n"
            "    ids = torch.cat([ids, out.logits[:, -1:].argmax(-1)], dim=1)"
        )
    else:
        code = (
            "# in each attention layer: keep the keys and values of the tokens so far\n"
            "keys[:, :, position] = k  # made once, with room for the longest text\n"
            "values[:, :, position] = v\n"
            "# in the loop: call the model with the new token alone\n"
            "logits = model(ids[:, -1:], position)"
        )
    return code
