"""Write docs/rules/: one page for each rule, and a table of all of them.

usage: python docs/rule_pages.py [FOLDER]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ridgeline.diagnosis.rule_texts import rule_names, rule_page
from ridgeline.report.views.rule import FAMILIES, RulePage, by_family


def pages() -> dict[str, str]:
    """Return the text of each file by its name."""
    every = [rule_page(name) for name in rule_names()]
    return {"README.md": index(every), **{f"{rule.id}.md": page(rule) for rule in every}}


def page(rule: RulePage) -> str:
    lines = [f"# {rule.title}", "", f"`{rule.id}` · {rule.family} · [all rules](README.md)", ""]
    for title, text in rule.parts:
        lines += [f"## {title}", "", text.strip(), ""]
    if rule.needs:
        lines += [f"Needs: {', '.join(rule.needs)}.", ""]
    lines += ["[How to read a finding](../findings.md)", ""]
    return "\n".join(lines)


def index(rules: Sequence[RulePage]) -> str:
    lines = [
        "# Rules",
        "",
        f"What `ridgeline run` and `ridgeline trace` look for: {len(rules)} rules. "
        "`ridgeline explain RULE` shows one at the terminal;",
        "[how to read a finding](../findings.md). These pages are made from the rules themselves "
        "(`python docs/rule_pages.py`).",
        "",
    ]
    for family, members in by_family(rules):
        lines += [f"## {FAMILIES.get(family, family)}", "", "| rule | |", "| --- | --- |"]
        for rule in members:
            title = rule.title.replace("|", "\\|")
            lines.append(f"| [{rule.id}]({rule.id}.md) | {title} |")
        lines.append("")
    return "\n".join(lines)


def write(folder: Path) -> None:
    """Write all pages, and remove the pages of rules that no longer exist."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = pages()
    for old in folder.glob("*.md"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "rules")
