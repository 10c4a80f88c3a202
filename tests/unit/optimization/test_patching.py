"""What was kept, written into a copy of the source."""

from pathlib import Path

from ridgeline.optimization.patching import patches
from ridgeline.records.trial import Applied

SCRIPT = """\
import torch
from torch import nn

model = nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""


def test_changes_of_a_call_and_of_the_whole_program_are_written(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    found = patches(
        script,
        [
            Applied(change="tf32", what="…"),
            Applied(change="fused-optimizer", what="AdamW(fused=True)", places=(f"{script}:5",)),
        ],
    )
    (file,) = found.files
    assert not found.by_hand
    assert "lr=1e-3, fused=True)" in file.text
    assert file.text.index("import torch\n") < file.text.index("set_float32_matmul_precision")
    assert script.read_text() == SCRIPT


def test_what_cannot_be_edited_is_said_in_words(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("lr=1e-3", "**options"))
    applied = Applied(change="fused-optimizer", what="AdamW(fused=True)", places=(f"{script}:5",))
    found = patches(script, [applied])
    assert not found.files
    (words,) = found.by_hand
    assert "line 5" in words
    assert "fused=True" in words
