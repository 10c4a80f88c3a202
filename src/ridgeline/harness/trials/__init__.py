"""Trials: the user's own program in processes of its own, with changes put on from outside."""
