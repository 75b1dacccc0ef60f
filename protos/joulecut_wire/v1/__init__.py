"""Version 1 of the wire. Generated stubs; `make proto` writes them."""
