"""What runs in workers and keeps what happens there: steps, states and videos."""
