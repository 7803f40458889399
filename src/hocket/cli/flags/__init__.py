"""From a command line to flags and a configuration."""
