"""Checkpoints of LeRobot."""
