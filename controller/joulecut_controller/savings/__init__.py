"""What was saved, of what trust has recorded in a store."""
