"""The changes, one a file."""
