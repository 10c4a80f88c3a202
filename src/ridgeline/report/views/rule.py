"""Rules of the diagnosis: the page of one, and the list of all."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ridgeline.report.document import (
    Block,
    Code,
    Command,
    Commands,
    Document,
    Labelled,
    Paragraph,
    Points,
    Report,
    Section,
    Span,
    item,
    prose,
)

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
_FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})(\w*)")
_POINT = re.compile(r"(?:[-*]|\d+\.) ")


class RulePage(Struct, frozen=True, kw_only=True):
    """The texts of a rule, in Markdown, and its facts."""

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


def rule_report(page: RulePage) -> Report:
    return Report(document=lambda: rule_document(page), data=lambda: rules_data([page]))


def rules_report(pages: Sequence[RulePage]) -> Report:
    return Report(document=lambda: rules_document(pages), data=lambda: rules_data(pages))


def rule_document(page: RulePage) -> Document:
    return Document(
        answer=(Span(page.title),),
        about=(page.id, page.family),
        blocks=tuple(
            Section(title=heading.lower(), blocks=tuple(prose_blocks(text)), spaced=True)
            for heading, text in page.parts
        ),
    )


def rules_document(pages: Sequence[RulePage]) -> Document:
    families = tuple(
        Section(
            title=FAMILIES.get(family, family),
            blocks=(Labelled(tuple(item(page.id, prose(page.title)) for page in members)),),
        )
        for family, members in by_family(pages)
    )
    command = Command("one of them", "ridgeline explain RULE")
    return Document(
        answer=(Span(f"The diagnosis has {len(pages)} rules"),),
        blocks=(*families, Commands((command,))),
    )


def rules_data(pages: Iterable[RulePage]) -> dict[str, Any]:
    return {"schema": SCHEMA, "rules": [msgspec.to_builtins(page) for page in pages]}


def by_family(pages: Iterable[RulePage]) -> list[tuple[str, list[RulePage]]]:
    """Return the families in their order, each with its rules by name. A family without rules is
    left out."""
    families: dict[str, list[RulePage]] = {family: [] for family in FAMILIES}
    for page in sorted(pages, key=lambda page: page.id):
        families.setdefault(page.family, []).append(page)
    return [(family, members) for family, members in families.items() if members]


def prose_blocks(markdown: str) -> Iterator[Block]:
    """Return the paragraphs, lists and fenced code of a text in Markdown."""
    lines: list[str] = []
    language: str | None = None  # of the fenced code that the line is in
    for line in [*markdown.strip("\n").expandtabs(4).splitlines(), ""]:
        fence = _FENCE.match(line)
        if language is not None and not fence:
            lines.append(line.rstrip())
        elif language is not None:
            yield Code("\n".join(lines), language)
            lines, language = [], None
        elif fence or not line.strip():
            yield from _paragraph_or_points(lines)
            lines, language = [], fence[1] if fence else None
        else:
            lines.append(" ".join(line.split()))
    yield from _paragraph_or_points(lines)


def _paragraph_or_points(lines: Sequence[str]) -> Iterator[Block]:
    if lines and not _POINT.match(lines[0]):
        after = next((i for i, line in enumerate(lines) if _POINT.match(line)), len(lines))
        yield Paragraph(prose(" ".join(lines[:after])))
        lines = lines[after:]
    points: list[str] = []
    for line in lines:
        if mark := _POINT.match(line):
            points.append(line[mark.end() :])
        else:
            points[-1] += f" {line}"
    if points:
        yield Points(tuple(map(prose, points)), numbered=lines[0][0].isdigit())
