"""Interpreters that simulators and policies need apart from hocket's, and how they are built."""
