"""An ordinary engine on one machine, fed with leases by a driver elsewhere."""
