"""Runs a live program and records it: the only layer that touches user code."""
