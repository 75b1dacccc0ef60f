"""From a view to a decision: the plan, who makes it, and who may refuse it."""
