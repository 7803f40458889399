"""OpenPI's protocol, from the side that asks."""
