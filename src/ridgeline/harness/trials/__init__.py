"""Trials: fresh processes of the user's program, with fixes applied from outside."""
