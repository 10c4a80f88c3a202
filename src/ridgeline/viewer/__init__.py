"""`ridgeline view`: the recorded runs in a browser, and a run under way in a terminal."""
