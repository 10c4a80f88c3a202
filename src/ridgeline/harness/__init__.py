"""Runs the user's code: imports it, watches it, and runs it again with fixes on."""
