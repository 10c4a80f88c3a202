"""Whole scripts: run in fresh processes, timed by their steps, compared by their losses."""
