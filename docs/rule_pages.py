"""Write docs/rules/: one page for each rule, and a table of all of them.

usage: python docs/rule_pages.py [FOLDER]
"""

import sys
from pathlib import Path

from ridgeline.cli.explain import rule_pages
from ridgeline.report.rule_page import index_markdown, page_markdown


def pages() -> dict[str, str]:
    """Return the text of each file by its name."""
    every = rule_pages()
    texts = {f"{page.id}.md": page_markdown(page) for page in every}
    return {"README.md": index_markdown(every), **texts}


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
