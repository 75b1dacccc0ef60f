"""How long a job is left alone after a failure, so that a fault that lasts is not hammered.

Twice as long after each failure, until a person would rather wait no longer; forgiven once a
plan has held. Pure: told the time, it only counts.
"""

RETRY_S_MAX = 300.0  # a refusal that lasts needs a person, who should not wait longer
DOUBLINGS_MAX = 16  # of an interval: more than any there is needs to reach RETRY_S_MAX


class Backoff:
    """Failures of one job since the last that was forgiven."""

    def __init__(self, interval_s: float) -> None:
        """The first failure costs two intervals."""
        self._interval_s = interval_s
        self._failures = 0
        self._until_s = float("-inf")
        self._reason = ""

    def fail(self, reason: str, now_s: float) -> None:
        self._failures += 1
        self._reason = reason
        doublings = min(self._failures, DOUBLINGS_MAX)
        self._until_s = now_s + min(self._interval_s * 2.0**doublings, RETRY_S_MAX)

    def forgive(self) -> None:
        """A wait that has begun goes on; the next failure counts as the first."""
        self._failures = 0

    def wait(self, now_s: float) -> str:
        """Why nothing is tried now; empty where it may be."""
        if now_s >= self._until_s:
            return ""
        return f"standing back for {self._until_s - now_s:.0f} s after: {self._reason}"
