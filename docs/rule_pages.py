"""Write docs/rules/ from the rules themselves: a page each, and a table of all.

usage: python docs/rule_pages.py [FOLDER]
"""

import sys
from pathlib import Path

from ridgeline.cli.explain import rule_pages
from ridgeline.report.rule_page import index_markdown, page_markdown


def pages() -> dict[str, str]:
    """Each file's name and text."""
    found = rule_pages()
    made = {f"{page.id}.md": page_markdown(page) for page in found}
    return {"README.md": index_markdown(found), **made}


def write(folder: Path) -> None:
    """Pages of rules that are gone go too."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in folder.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "rules")
