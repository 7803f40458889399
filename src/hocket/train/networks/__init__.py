"""What can be trained, and how it is named, built and loaded."""
