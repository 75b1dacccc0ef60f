"""Jobs without a profile: what their windows say, and which clocks to try next."""
