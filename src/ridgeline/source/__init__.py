"""The user's source code: reading it to find lines, editing copies of it."""
