"""hocket runs action-chunking robot policies in many simulated environments at once."""
