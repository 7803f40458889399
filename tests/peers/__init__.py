"""The other ends of wires, written for the tests from descriptions of the protocols alone."""
