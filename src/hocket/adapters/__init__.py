"""Simulators and models, found by name; nothing in the engine imports one."""
