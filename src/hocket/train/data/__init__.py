"""Recorded episodes as data to learn from: read, kept with the run, and drawn from."""
