"""What is to be expected of numbers whose likeliest value is only the end of what they may be.

An iteration is as long as the slowest stage makes it, so the work of all others is known from
one side only. The likeliest fit puts them at that side, or where the prior had them; what is
left open beyond it is a whole half of their prior. Pure and deterministic.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LogOdds = Callable[[Floats], Floats]  # numbers (count, guesses) -> (guesses,)

# How much less or more of a stage's work is supposed, as differences of logarithms.
MOVES = np.arange(-0.40, 0.101, 0.01)


def expected(numbers: Floats, open_at: Sequence[int], log_odds: LogOdds) -> Floats:
    """`numbers` (count,) with those in `open_at` each at its mean, given the rest. One after the
    other, those left open most first: of two that explain the same readings one has to stay.
    """
    made = numbers.copy()
    order = sorted(open_at, key=lambda at: (_mean_move(made, at, log_odds), at))
    for at in order:
        made[at] += _mean_move(made, at, log_odds)
    return made


def _mean_move(numbers: Floats, at: int, log_odds: LogOdds) -> float:
    guesses = np.repeat(numbers[:, None], len(MOVES), axis=1)
    guesses[at] += MOVES
    odds = log_odds(guesses)
    weights = np.exp(odds - odds.max())
    return float(weights @ MOVES / weights.sum())
