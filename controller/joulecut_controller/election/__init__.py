"""Which of several controllers leads: one seat for all of them, held by proof and not by hope."""
