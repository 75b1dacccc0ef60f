"""`joulecut demo`: the simulated cluster, and the most that its plans could save."""
