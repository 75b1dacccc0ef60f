"""Leader election: one lock shared by all controllers of a store; only its holder commands."""
