"""The user's own code: found, imported, and its errors said in a sentence."""
