"""What was saved, for people: reports and receipts from what trust has recorded in a store."""
