"""Faults put into our own calls, never into the program's; only for the proof."""
