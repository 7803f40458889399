"""The values, messages, contracts and names that every other folder stands on."""
