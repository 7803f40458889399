"""Pictures of episodes: recorded while they run, or rendered again from states."""
