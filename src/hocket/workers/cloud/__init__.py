"""Workers on rented machines."""
