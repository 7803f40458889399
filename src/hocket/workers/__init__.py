"""Processes that own simulators, and the fleet that the engine sees of them."""
