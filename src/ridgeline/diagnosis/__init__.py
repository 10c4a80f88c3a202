"""From a run directory to what it says: step times, efficiency, what limits the program."""
