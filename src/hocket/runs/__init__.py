"""What a user asks for, put together: evaluate, collect, check, verify, export."""
