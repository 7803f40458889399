"""A run as it is shown while it goes on."""
