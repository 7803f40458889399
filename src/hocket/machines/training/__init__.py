"""Sites that collect for a training run: the part of machines that needs train/."""
