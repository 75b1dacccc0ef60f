"""Fits the estimator to what running jobs show, one workload at a time."""

from dataclasses import dataclass, field

from joulecut_controller.board import Learnt
from joulecut_engine.estimate.online import LearningStats, OnlineEstimator

REFIT_S = 30.0  # of one workload: each fit may lead to another plan


@dataclass(slots=True)
class Learning:
    """Fits of one learner."""

    learner: OnlineEstimator
    _fitted_s: dict[str, float] = field(default_factory=dict)  # of late, by workload

    def step(self, now_s: float) -> None:
        """Fits where samples are new."""
        self._fitted_s = {k: at for k, at in self._fitted_s.items() if now_s - at < REFIT_S}
        if fitted := self.learner.fit(self._fitted_s):
            self._fitted_s[fitted] = now_s

    def learnt(self, job: str) -> Learnt:
        """For the board, of a job with a profile."""
        lesson = self.learner.learning_stats(job)
        begun_from = "other jobs" if self.learner.predicted(job) else "the profile"
        return Learnt(text=sentence(lesson, begun_from), refused=lesson.refused)


def sentence(lesson: LearningStats, begun_from: str = "the profile") -> str:
    """One line: what predictions rest on, their error, and samples not used as reported."""
    line = f"predicted from {begun_from}; nothing learned from the running job yet"
    if lesson.taken:
        line = f"predicted from {begun_from} and {lesson.taken} samples of the running job"
        if lesson.error is not None:
            line += f" (time error {100 * lesson.error:.2g} % before learning)"
    if lesson.refused:
        line += "; not learned as reported: " + ", ".join(f"{n} {why}" for why, n in lesson.refused)
    return line
