"""The static look: the user's own source, read only to place and to confirm what was measured."""
