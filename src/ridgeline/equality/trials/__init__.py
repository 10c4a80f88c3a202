"""Judges whether a changed program computes the same as the unchanged one, from their trials.

Knows no torch. `noise_bands.band_of` returns how far a candidate may lie from the baseline,
`parity.compare` judges whether it does.
"""
