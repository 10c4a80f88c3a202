"""Says what a study of a model or a machine IS: frozen records with their units in the field names.

Knows nothing about torch, clocks or files.
"""
