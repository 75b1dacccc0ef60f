"""A pipeline that must wait for a slower sibling: it runs late, on purpose.

Data-parallel pipelines meet once per iteration. One that would be early waits, and waiting draws
power whatever it planned; so with a sibling that takes T' it may take T = max(T', min(D, T_E)) and
spend the least effective cost within that (Perseus, SOSP'24, section 3.2; D is its own deadline,
T_E the time of least energy of a lone pipeline). With a synchronisation per layer it is unknown
which iteration is early: no credit.
"""

from typing import Literal

Sync = Literal["iteration", "layer"]


def time_s(deadline_s: float, cheapest_s: float, straggler_s: float, sync: Sync) -> float:
    """How long an iteration will take: T = max(T', min(D, T_E)), in seconds."""
    own_s = min(deadline_s, cheapest_s)
    return own_s if sync == "layer" else max(straggler_s, own_s)
