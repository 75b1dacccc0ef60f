"""The kept frontier of each job that has siblings, so that a straggler is answered at once.

Stragglers come and go within seconds; a solve for each would be late. The frontier is built
once beside the passes and answers from then on; until it is there, the solver is asked.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from joulecut_controller.plan.costs import Costs
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.problem import Problem
from joulecut_engine.optimize.straggler import Kept

Keep = Callable[[Problem, Granularity], Kept]

RENEW_S = 30.0  # as the frontiers that people look at: 64 solves are not made every pass
TOPIC = "stragglers"


@dataclass(frozen=True, slots=True)
class _Made:
    digest: str
    granularity: Granularity
    asked_s: float
    kept: Kept


class Stragglers:
    """The newest kept frontier of each job; none where `keep` is None."""

    def __init__(self, keep: Keep | None, studies: BackgroundTasks) -> None:
        self._keep, self._studies = keep, studies
        self._made: dict[str, _Made] = {}

    def keep_only(self, jobs: Iterable[str]) -> None:
        wanted = set(jobs)
        for job in [job for job in self._made if job not in wanted]:
            del self._made[job]

    def ask(self, job: str, costs: Costs, granularity: Granularity, now_s: float) -> None:
        """Begins to build a job's frontier where it is missing or out of date."""
        made, key = self._made.get(job), (TOPIC, job)
        if self._keep is None or self._studies.pending(key):
            return
        if made and (self._is_of(made, costs, granularity) or now_s - made.asked_s < RENEW_S):
            return
        work = partial(self._keep, costs.problem, granularity)
        self._studies.want(key, work, partial(self._take, job, costs.digest, granularity, now_s))

    def of(self, costs: Costs, granularity: Granularity) -> Kept | None:
        """The frontier of exactly these costs, where it is there already."""
        # A copy: passes ask from their thread while a study may end in the loop's.
        for made in tuple(self._made.values()):
            if self._is_of(made, costs, granularity):
                return made.kept
        return None

    def _is_of(self, made: _Made, costs: Costs, granularity: Granularity) -> bool:
        return (made.digest, made.granularity) == (costs.digest, granularity)

    def _take(
        self, job: str, digest: str, granularity: Granularity, asked_s: float, kept: Kept
    ) -> None:
        self._made[job] = _Made(digest, granularity, asked_s, kept)
