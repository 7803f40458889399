"""Policies: bundled ones, torch modules, LeRobot checkpoints, and those over the wire."""
