"""The functions in which attention is written out, rewritten for a trial."""

from collections.abc import Sequence
from pathlib import Path

from ridgeline.fixes.fused_attention import fused
from ridgeline.records.finding import Finding
from ridgeline.records.trial import FunctionEdit


def rewritten(findings: Sequence[Finding]) -> tuple[tuple[FunctionEdit, ...], str]:
    """Of findings that say so; and why not, where there is none."""
    edits: list[FunctionEdit] = []
    why = "no attention that is written out was found to cost time"
    for finding in findings:
        if finding.rule != "written-attention" or not finding.file or finding.line is None:
            continue
        path = Path(finding.file).absolute()
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError):
            why = f"{finding.file} cannot be read"
            continue
        found = fused(text, finding.line)
        if isinstance(found, str):
            why = found
            continue
        edits.append(
            FunctionEdit(
                file=str(path), line=found.line, name=found.function, text=found.text,
                new_line=found.line,
            )
        )  # fmt: skip
    return tuple(edits), "" if edits else why
