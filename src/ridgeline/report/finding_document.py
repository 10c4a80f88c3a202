"""Findings as part of a JSON document: every field of each, in a fixed order."""

from typing import Any

import msgspec

from ridgeline.records.finding import Findings


def finding_keys(findings: Findings) -> dict[str, Any]:
    """Keys of the document that holds them: `findings[]` the most valuable first, `answers[]`."""
    return {
        "findings": [msgspec.to_builtins(finding) for finding in findings.findings],
        "findings_left_out": findings.left_out,
        "answers": [msgspec.to_builtins(answer) for answer in findings.answers],
        "ceiling_pct": findings.ceiling_pct,
        "ceiling": findings.ceiling or None,
        "remains": findings.remains,
        "unexplained": findings.unexplained,
        "loss": None if findings.loss is None else msgspec.to_builtins(findings.loss),
        "basis": findings.basis,
        "unlooked": list(findings.unlooked),
    }
