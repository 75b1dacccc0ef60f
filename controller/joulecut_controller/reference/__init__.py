"""What default clocks would take now: chunks of iterations, and one filter over them."""
