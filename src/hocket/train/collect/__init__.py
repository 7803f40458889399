"""The side that turns weights into trajectories."""
