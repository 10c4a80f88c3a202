"""Tries fixes on a program, keeps those that are faster and equal, and confirms the whole."""
