"""Edits of the user's source, carried out on a copy: what stands outside an edit stays as it is,
byte for byte, since edits are spliced into the text at the places the parser names."""

from ridgeline.source.editing.copies import copies, write_copy, write_text
from ridgeline.source.editing.patching import patched

__all__ = ["copies", "patched", "write_copy", "write_text"]
