"""The side that turns trajectories into weights."""
