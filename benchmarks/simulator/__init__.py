"""Where the parameters of the simulator come from."""
