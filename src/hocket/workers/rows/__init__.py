"""What a worker does with a batched simulator: many lanes behind one step."""
