"""The privileged corner of a node: the only code that writes to a GPU."""
