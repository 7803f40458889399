"""What survives of a run: its folder, ledger, steps, states and videos."""
