"""LIBERO's suites."""
