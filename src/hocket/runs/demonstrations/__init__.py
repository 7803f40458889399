"""Episodes of recorded runs as data to learn from, and to export."""
