"""Changes that alter what is computed, asked for by name."""

from collections.abc import Iterable

from msgspec import Struct

from ridgeline.errors import UsageError
from ridgeline.fixes.change import registered

BATCH = "larger-batch"
"""Asked for apart: it has a row of its own."""


class Allowed(Struct, frozen=True):
    names: tuple[str, ...] = ()
    needless: tuple[str, ...] = ()
    """A sentence for each that is tried without being allowed."""


def allowed(asked: Iterable[str], option: str = "allow", batch: str = "batch=True") -> Allowed:
    """`option`, `batch`: how they are written where they are asked for."""
    names = tuple(dict.fromkeys(name.strip() for name in asked if name.strip()))
    if not names:
        return Allowed()
    known = {one.change.id: one.change.alters for one in registered()}
    able = [n for n, alters in sorted(known.items()) if alters == "semantics" and n != BATCH]
    needless = []
    for name in names:
        if name == BATCH:
            raise UsageError(f"{option} {name}: larger batches are asked for with {batch}")
        if name not in known:
            raise UsageError(
                f"{option} {name}: there is no such change", f"one of: {', '.join(able)}"
            )
        if name not in able:
            alters = "rounding alone" if known[name] == "rounding" else "nothing"
            told = f"{option} {name}: it alters {alters}, and is tried without being allowed"
            needless.append(f"{told}; to allow are {', '.join(able)}")
    return Allowed(tuple(name for name in names if name in able), tuple(needless))
