"""What was saved, for people: reports from what trust has recorded in a store."""
