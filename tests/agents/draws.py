"""How many examples a property of `docs/safety.md` draws: more than others, and all at night."""

from hypothesis import settings

SAFE = settings(max_examples=max(60, settings().max_examples))
