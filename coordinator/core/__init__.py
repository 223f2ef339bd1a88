"""Decisions: no I/O, no clock, no randomness, no threads. Time and jitter come in as arguments."""
