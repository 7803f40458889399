"""A policy on threads of its own, and what is done where it raises, hangs or answers unlike."""
