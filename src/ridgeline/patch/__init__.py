"""Edits of the user's source, carried out on a copy: what stands outside an edit stays as it is,
byte for byte, since edits are spliced into the text at the places the parser names."""

from ridgeline.patch.copies import copies
from ridgeline.patch.patching import patched
from ridgeline.patch.writing import write_copy, write_text

__all__ = ["copies", "patched", "write_copy", "write_text"]
