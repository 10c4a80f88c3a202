"""The pages of the rules, read from `rules/<rule>.md`.

`ridgeline explain` runs no rule: importing the rules also imports numpy and the analyses of traces,
which takes 0.5 s, while reading the two files of a rule takes a few milliseconds.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.report.views.rule import SECTIONS, RulePage

_FOLDER = Path(__file__).parent / "rules"
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def rule_names() -> tuple[str, ...]:
    """Return the ids of all rules. A rule's file is named after its id."""
    stems = (file.stem for file in _FOLDER.glob("*.py"))
    return tuple(sorted(stem.replace("_", "-") for stem in stems if not stem.startswith("_")))


@cache
def rule_page(rule: str) -> RulePage:
    stem = rule.replace("-", "_")
    facts = _rule_arguments((_FOLDER / f"{stem}.py").read_text(encoding="utf-8"))
    texts = parse_rule_text((_FOLDER / f"{stem}.md").read_text(encoding="utf-8"))
    return RulePage(id=rule, family=facts["family"], needs=facts.get("needs", ()), **texts)


def parse_rule_text(markdown: str) -> dict[str, str]:
    """Return the title and the sections of a rule's text by field name. Raise ValueError if it does
    not have exactly the sections of a page, in their order."""
    head, *sections = _HEADING.split(markdown)
    title = head.strip()
    if not title.startswith("# ") or "\n" in title:
        raise ValueError(f"the text must begin with one line '# Title', not {title!r}")
    headings = sections[::2]
    if headings != list(SECTIONS.values()):
        raise ValueError(f"{title}: the headings are {headings}, not {list(SECTIONS.values())}")
    bodies = (body.strip() for body in sections[1::2])
    return {"title": title.removeprefix("# "), **dict(zip(SECTIONS, bodies, strict=True))}


def _rule_arguments(python: str) -> dict[str, Any]:
    """Return the arguments of `RULE = Rule(...)`, which are all literals."""
    for statement in ast.parse(python).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "RULE":
            call = statement.value
            if isinstance(call, ast.Call):
                return {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg}
    raise ValueError("the file of a rule has no line 'RULE = Rule(...)'")
