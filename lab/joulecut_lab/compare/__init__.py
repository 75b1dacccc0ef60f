"""`joulecut compare`: other rules for clocks, on the same job, before the same judge."""
