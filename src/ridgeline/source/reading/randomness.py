"""Whether a function, by its source, draws random numbers: then its results differ each time."""

import ast
import re

from ridgeline.source.reading.sources import Sources

_DRAWS = re.compile(
    r"^(?:rand\w*|random\w*|uniform_?|normal_?|normalvariate|gauss|lognormal_?|exponential_?"
    r"|choices?|shuffle|sample|permutation|permuted|bernoulli_?|multinomial|poisson|beta|binomial"
    r"|dropout\d?d?|jitter\w*|augment\w*|cutout|mixup|cutmix|Random\w*|Augment\w*|ColorJitter"
    r"|TrivialAugment\w*|AutoAugment|RandAugment|AugMix|default_rng|Generator)$"
)
_SOURCES = re.compile(r"(?:^|[._])(?:random|rng|generator|augment\w*)$", re.IGNORECASE)


def draws(sources: Sources, file: str, line: int) -> bool | None:
    """Whether the function around a line draws; None where its source cannot be read."""
    source = sources.get(file)
    if source is None:
        return None
    return any(_draws(node) for node in source.walk(source.scope(line)))


def _draws(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        on = ast.unparse(node.func.value)
        return bool(_DRAWS.match(node.func.attr) or _SOURCES.search(on))
    return isinstance(node.func, ast.Name) and bool(_DRAWS.match(node.func.id))
