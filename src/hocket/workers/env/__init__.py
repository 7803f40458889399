"""What a worker does with one env: reset it, execute chunks in it, observe and record."""
