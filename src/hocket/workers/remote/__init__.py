"""Workers that share nothing with the engine's process but a stream of bytes."""
