"""Puts the predictors through every split and collects what they said."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from joulecut_lab.study.layers import Layers
from joulecut_lab.study.learners import Curves, Learner, PlainForest
from joulecut_lab.study.row import Row
from joulecut_lab.study.scores import TARGETS, Choices, Floats, Score, choices, score, targets
from joulecut_lab.study.splits import Split, splits

OURS = Curves.name


@dataclass(frozen=True, slots=True)
class Result:
    """One predictor under one split. `silent` rows it could say nothing of; `time_s` and
    `power_w` are its answers for all rows, not a number where a row was not judged. Without
    any answer (`judged` is 0) there are no scores.
    """

    split: Split
    predictor: str
    judged: int
    silent: int
    scores: dict[str, Score]
    choices: Choices | None
    time_s: Floats
    power_w: Floats

    @property
    def silence(self) -> str:
        """One line where it said nothing of some rows, else empty."""
        if not self.silent:
            return ""
        asked = self.judged + self.silent
        return (
            f"{self.split.name}: {self.predictor} says nothing of {self.silent} of {asked} rows "
            "(a card without a data sheet is not guessed, nor learnt from)"
        )


def evaluate(rows: Sequence[Row], seed: int) -> list[Result]:
    """Our predictor and a plain forest, split by split; deterministic."""
    found = []
    for split in splits(rows, seed):
        makers: tuple[Callable[[], Learner], ...] = (Curves if split.known else Layers, PlainForest)
        found += [_result(rows, split, make) for make in makers]
    return found


def _result(rows: Sequence[Row], split: Split, make: Callable[[], Learner]) -> Result:
    time_s, power_w = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    judged = {i for fold in split.folds for i in fold.judge}
    # A choice is among all clocks of a curve, also those that taught it.
    whole_s, whole_w = time_s.copy(), power_w.copy()
    name = ""
    for fold in split.folds:
        learner = make()
        name = learner.name
        learner.learn([rows[i] for i in fold.teach])
        places = list(fold.judge)
        time_s[places], power_w[places] = learner.predict([rows[i] for i in places])
        settings = {rows[i].setting for i in places}
        beside = [i for i in fold.teach if i not in judged and rows[i].setting in settings]
        if beside:
            whole_s[beside], whole_w[beside] = learner.predict([rows[i] for i in beside])
    said = np.isfinite(time_s) & np.isfinite(power_w)
    places = [int(i) for i in np.flatnonzero(said)]
    whole_s[places], whole_w[places] = time_s[places], power_w[places]
    known = [int(i) for i in np.flatnonzero(np.isfinite(whole_s))]
    truth = targets([rows[i] for i in places])
    answers = {"power": power_w, "time": time_s, "energy": time_s * power_w}
    return Result(
        split=split,
        predictor=name,
        judged=len(places),
        silent=len(judged) - len(places),
        scores={t: score(truth[t], answers[t][places]) for t in TARGETS} if places else {},
        choices=choices([rows[i] for i in known], whole_s[known], whole_w[known]),
        time_s=time_s,
        power_w=power_w,
    )
