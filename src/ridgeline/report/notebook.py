"""Results in a notebook: each shows its page in a frame below its cell. At a Python prompt it shows
one line, and `print` shows the whole report."""

import sys
from html import escape

from ridgeline.report.document import Claims, Document, Section, Table, plain

REPORT_COLUMNS = 120
MIN_FRAME_PX, MAX_FRAME_PX = 220, 760
"""Height of a frame: a page is seen whole up to a screen, and scrolls beyond. The frame can be made
larger at its corner."""
_HEADER_PX, _LINE_PX, _FIGURE_PX, _CLAIM_PX = 150, 30, 260, 130
"""About how much of a page its header, a row of text, a figure and a finding take."""


class ShownAsPage:
    """A result that has a document. The class says which."""

    def document(self) -> Document:
        """Return what `print` and a note show."""
        raise NotImplementedError

    def page_document(self) -> Document:
        """Return what a page shows, where that is more."""
        return self.document()

    def __repr__(self) -> str:
        from ridgeline.report.plain import printable

        document = self.document()
        short = " · ".join((document.answer_text, *document.facts))
        return f"<{type(self).__name__}: {printable(short)}; print() shows all of it>"

    def __str__(self) -> str:
        from ridgeline.report.renderers import terminal

        return terminal.render_text(self.document(), REPORT_COLUMNS).strip("\n")

    def _repr_html_(self) -> str:
        from ridgeline.report.renderers import html

        document = self.page_document()
        return frame(html.render(document), document.answer_text, frame_height(document))

    def _repr_markdown_(self) -> str:
        from ridgeline.report.renderers import markdown

        return markdown.render(self.document())


def frame(page: str, answer: str, height_px: int) -> str:
    """Return a page in a frame of its own. Its script may run, but it reaches neither the notebook
    nor anything that the browser keeps. Where frames are removed, as GitHub does, the answer is
    what is left."""
    style = (
        f"width: 100%; height: {height_px}px; border: 1px solid #8886; border-radius: 6px; "
        "resize: vertical; overflow: auto"
    )
    return (
        f'<iframe sandbox="allow-scripts" title="ridgeline" style="{style}" '
        f'srcdoc="{escape(page)}">{escape(answer)}</iframe>'
    )


def frame_height(document: Document) -> int:
    """Return about how high the page is, between the bounds of a frame."""
    height = _HEADER_PX + sum(_height(block) for block in document.blocks)
    return min(max(height, MIN_FRAME_PX), MAX_FRAME_PX)


def _height(block: object) -> int:
    if isinstance(block, Section):
        inside = 0 if block.folded else sum(_height(held) for held in block.blocks)
        return 2 * _LINE_PX + inside
    if isinstance(block, Claims):
        return _CLAIM_PX * len(block.claims)
    if isinstance(block, Table):
        return _LINE_PX * (1 + len(block.rows))
    texts = [line for held in getattr(block, "items", ()) for line in held.lines]
    if texts or hasattr(block, "text"):
        return _LINE_PX * max(len(texts), plain(getattr(block, "text", "")).count("\n") + 1)
    return _FIGURE_PX


def shown_in_notebook(result: ShownAsPage) -> bool:
    """Show a result below the cell that runs now. Return False if this is no notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if ipython is None or getattr(shell, "kernel", None) is None:
        return False
    ipython.display.display(result)
    return True
