"""What tests share: toys, rigs, peers and recorded runs."""
