"""Measurement of a call on this machine: time, peak memory, and the speed of text generation.

The package knows torch and clocks but no models: the caller passes what is to be called.
"""
