"""Comparison that can be believed: variants timed in interleaved rounds, and their results checked.

`measure/` knows how to time and `statistics/` what timings say; this package knows what is being
compared: functions, scripts, folders of pairs.
"""
