"""MetaWorld's suites."""
