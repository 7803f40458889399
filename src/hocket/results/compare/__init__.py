"""Two runs on the same trials: whether they differ, and by how much."""
