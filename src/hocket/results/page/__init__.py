"""What runs mean, as pages that anyone can open: one file each, which fetches nothing."""
