"""Two runs on the same trials, all at once or round by round."""
