"""Where the program's Python time goes, looked at from inside, a hundred times a second."""
