"""What surrounds a process: cores and memory, children, folders, addresses, people."""
