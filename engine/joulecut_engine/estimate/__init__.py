"""How long work takes and what it draws at every clock: physics, corrected by what is seen."""
