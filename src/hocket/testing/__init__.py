"""Conformance checks for envs, suites and policies, with a toy env and a scripted policy."""
