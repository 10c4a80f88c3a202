"""The user's own code: imports it, runs it in child processes, and words its errors."""
