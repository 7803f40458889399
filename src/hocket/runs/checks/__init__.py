"""What is asked before a number is believed: do env and policy fit, does it come again."""
