"""The pages of the rules, read from `rules/<rule>.md`.

`ridgeline explain` runs no rule: importing the rules also imports numpy and the analyses of traces,
which takes 0.5 s, while finding the two files of a rule and reading them takes 20 ms.
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
    """Return the ids of all rules. The text of a rule is named after its id."""
    return tuple(sorted(file.stem.replace("_", "-") for file in _FOLDER.glob("*.md")))


@cache
def rule_page(rule: str) -> RulePage:
    quoted = f'"{rule}"'
    named = (file for file, python in _python_files().items() if quoted in python)
    facts = next(rules[rule] for rules in map(_rules_in, named) if rule in rules)
    text = (_FOLDER / f"{rule.replace('-', '_')}.md").read_text(encoding="utf-8")
    family, needs = facts["family"], facts.get("needs", ())
    return RulePage(id=rule, family=family, needs=needs, **parse_rule_text(text))


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


@cache
def _python_files() -> dict[Path, str]:
    return {file: file.read_text(encoding="utf-8") for file in _FOLDER.glob("*.py")}


@cache
def _rules_in(file: Path) -> dict[str, dict[str, Any]]:
    """Return the arguments of each `Rule(...)` of a file, which are all literals, by the rule's
    id."""
    found = {}
    for statement in ast.parse(_python_files()[file]).body:
        call = statement.value if isinstance(statement, ast.Assign) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Rule":
            facts = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg}
            found[facts["id"]] = facts
    return found
