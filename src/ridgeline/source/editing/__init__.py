"""Edits of the user's source, carried out on a copy: what stands outside an edit stays as it is,
byte for byte, since edits are spliced into the text at the places the parser names."""

from ridgeline.source.editing.copies import copies
from ridgeline.source.editing.patching import patched
from ridgeline.source.editing.writing import write_copy, write_text

__all__ = ["copies", "patched", "write_copy", "write_text"]
