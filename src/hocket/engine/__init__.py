"""The one loop that joins fleet, scheduler, policy and readers."""
