"""Takes clock commands: checks them, passes them to the keeper, watches the result."""
