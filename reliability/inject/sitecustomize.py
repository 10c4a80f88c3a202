"""Loaded by every Python of a run whose PYTHONPATH names this folder."""

import faults

faults.begin()
