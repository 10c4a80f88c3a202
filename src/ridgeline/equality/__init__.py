"""Judges whether two variants compute the same."""
