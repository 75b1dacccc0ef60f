"""What is assumed of a card and its driver against what is seen: observations, and their judge."""
