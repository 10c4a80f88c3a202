"""A rule of the diagnosis as a page: in docs/rules/, and at the terminal of `ridgeline explain`."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.text import Text

from ridgeline.report.plain import printable
from ridgeline.report.wrapping import wrapped

SCHEMA = "ridgeline.rules/1"
FAMILIES = {
    "correctness": "Results that are probably wrong",
    "input": "The device waits for data",
    "transfer": "Copies between host and device",
    "synchronisation": "The host waits for the device",
    "launch": "Work reaches the device too slowly",
    "precision": "Arithmetic wider than needed",
    "kernels": "Slow ways to compute the same",
    "memory": "Memory held, grown or split up",
    "compile": "Compilation that does not pay",
    "machine": "The machine, and who else uses it",
    "communication": "Ranks waiting for each other",
}
"""The families in the order of the pages: waits of a step come before its work."""
SECTIONS = {
    "looks_at": "What it looks at",
    "threshold": "When it reports",
    "why": "Why it costs",
    "fix": "The fix",
    "wrong_when": "When it may be wrong",
}
"""The heading of each text field of a page, in order."""
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
_INDENT = 3


class RulePage(Struct, frozen=True, kw_only=True):
    """The fields of a rule, without the code that looks."""

    id: str
    family: str
    title: str
    looks_at: str
    threshold: str
    why: str
    fix: str
    wrong_when: str
    needs: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        return tuple((heading, getattr(self, field)) for field, heading in SECTIONS.items())


def by_family(pages: Iterable[RulePage]) -> list[tuple[str, list[RulePage]]]:
    """Families in their order, rules by name; a family without rules is left out."""
    held: dict[str, list[RulePage]] = {family: [] for family in FAMILIES}
    for page in sorted(pages, key=lambda page: page.id):
        held.setdefault(page.family, []).append(page)
    return [(family, found) for family, found in held.items() if found]


def document(pages: Iterable[RulePage]) -> dict[str, Any]:
    return {"schema": SCHEMA, "rules": [msgspec.to_builtins(page) for page in pages]}


def page_markdown(page: RulePage) -> str:
    """docs/rules/<id>.md"""
    lines = [f"# {page.title}", "", f"`{page.id}` · {page.family} · [all rules](README.md)", ""]
    for title, text in page.parts:
        lines += [f"## {title}", "", text.strip(), ""]
    if page.needs:
        lines += [f"Needs: {', '.join(page.needs)}.", ""]
    lines += ["[How to read a finding](../findings.md)", ""]
    return "\n".join(lines)


def index_markdown(pages: Sequence[RulePage]) -> str:
    """docs/rules/README.md"""
    lines = [
        "# Rules",
        "",
        f"What `ridgeline run` and `ridgeline trace` look for: {len(pages)} rules. "
        "`ridgeline explain RULE` shows one at the terminal;",
        "[how to read a finding](../findings.md). These pages are made from the rules themselves "
        "(`python docs/rule_pages.py`).",
        "",
    ]
    for family, found in by_family(pages):
        lines += [f"## {FAMILIES.get(family, family)}", "", "| rule | |", "| --- | --- |"]
        lines += [f"| [{page.id}]({page.id}.md) | {_cell(page.title)} |" for page in found]
        lines.append("")
    return "\n".join(lines)


def show_page(page: RulePage, console: Console) -> None:
    console.print()
    head = Text().append(f" {printable(page.title)}", "bold")
    head.append(f"   {page.id} · {page.family}", "dim")
    _print(head, console)
    for title, text in page.parts:
        console.print()
        _print(Text(f" {title.lower()}", "bold cyan"), console)
        for line in _terminal(text, console):
            _print(line, console)
    console.print()


def show_index(pages: Sequence[RulePage], console: Console) -> None:
    wide = max((len(page.id) for page in pages), default=0) + 2
    for family, found in by_family(pages):
        console.print()
        _print(Text(f" {FAMILIES.get(family, family)}", "bold"), console)
        for page in found:
            room = console.width - _INDENT - wide
            first, *others = wrapped(Text(printable(page.title)), room, console)
            lead = Text().append(f"{' ' * _INDENT}{page.id:<{wide}}", "cyan")
            _print(lead + first, console)
            for other in others:
                _print(Text(" " * (_INDENT + wide)) + other, console)
    console.print()
    _print(Text(" one of them:  ") + Text("ridgeline explain RULE", "bold"), console)


def _terminal(text: str, console: Console) -> list[Text]:
    """Paragraphs wrapped, lists kept, code as it is."""
    found: list[Text] = []
    for is_code, block in _blocks(text):
        if found:
            found.append(Text())
        if is_code:
            found += [Text(" " * (_INDENT + 2)) + Text(printable(line), "green") for line in block]
            continue
        for item in _items(block):
            lead = re.match(r"(?:[-*]|\d+\.) ", item)
            hang = " " * (len(lead.group()) if lead else 0)
            room = console.width - _INDENT - len(hang)
            first, *others = wrapped(Text(printable(item)), room, console)
            found.append(Text(" " * _INDENT) + first)
            found += [Text(" " * _INDENT + hang) + other for other in others]
    return found


def _blocks(text: str) -> list[tuple[bool, list[str]]]:
    """(code?, lines), parted by fences and empty lines."""
    found: list[tuple[bool, list[str]]] = []
    inside, held = False, list[str]()
    for line in [*text.strip("\n").expandtabs(4).splitlines(), ""]:
        fence = bool(_FENCE.match(line))
        if fence or (not inside and not line.strip()):
            if held:
                found.append((inside, held))
            held = []
            inside = not inside if fence else inside
        else:
            held.append(line.rstrip())
    return [*found, (inside, held)] if held else found


def _items(block: Sequence[str]) -> list[str]:
    """Lines of a paragraph joined; each item of a list alone."""
    found: list[str] = []
    for line in block:
        plain = " ".join(line.split())
        if found and not re.match(r"(?:[-*]|\d+\.) ", plain):
            found[-1] += f" {plain}"
        else:
            found.append(plain)
    return found


def _print(line: Text, console: Console) -> None:
    line.rstrip()
    console.print(line, soft_wrap=True, highlight=False)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
