"""What survives of a run, on the side of the engine: its folder, ledger, tables and provenance."""
