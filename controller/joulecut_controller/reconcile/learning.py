"""Fits the estimator and keeps its state across restarts.

The state is stored every KEEP_S, so that a restarted controller continues where it was.
"""

import asyncio
import base64
import binascii
import contextlib
import json
import math
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from joulecut_controller.board import Learnt
from joulecut_controller.ports import Store
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_engine.estimate.online import LearningStats, OnlineEstimator, joined

NAME = "predictors"  # of the text in the store
REFIT_S = 30.0  # of one workload: each fit may lead to another plan
# What a crash may lose. A pass with samples adds some kilobytes to what is written, durably.
KEEP_S = 10.0
KEEP_LARGE_S = 120.0  # for what takes more than a moment to write
ROWS_DEPTH = 4  # of an estimator's state: models, their parts, lists of rows
LARGE = 500_000  # characters, packed: some hundred GPUs


@dataclass(slots=True)
class Learning:
    """Fits, keeps and restores one learner. Controllers that share the jobs keep one state, each
    the part of its `own`.
    """

    learner: OnlineEstimator
    store: Store
    audit: AuditLog
    own: Callable[[str], bool] | None = None  # the jobs of this controller; None: all
    begun: bool = False
    _fitted_s: dict[str, float] = field(default_factory=dict)  # of late, by workload
    _kept_s: float = -math.inf
    _kept: str = ""
    _trouble: str = ""

    def begin(self) -> None:
        """Restores what an earlier controller learned. May take a second, so call it in a thread.

        Damaged state is reported in one line, and learning starts over.
        """
        self.begun = True
        kept = self.store.learnt(NAME)
        if not kept:
            return
        try:
            self.learner.restore(unpacked(kept))
        except ValueError as error:
            said = str(error).splitlines()[0][:200]
            self.audit.note(
                "learn", "", f"the learnt state cannot be read and starts empty: {said}"
            )
        else:
            self._kept = kept

    async def claim(self, jobs: Collection[str]) -> None:
        """What the controller before learnt of these jobs. Raises Unavailable."""
        if self.own is None or not self.begun or not jobs:
            return
        kept = await asyncio.to_thread(self.store.learnt, NAME)
        with contextlib.suppress(ValueError):  # their samples come again
            state = joined(unpacked(kept), self.learner.state(), _works_of(set(jobs).__contains__))
            await asyncio.to_thread(self.learner.restore, state)

    async def step(self, now_s: float) -> None:
        """Fits where samples are new, and writes the state where it changed. Raises Unavailable."""
        self._fitted_s = {k: at for k, at in self._fitted_s.items() if now_s - at < REFIT_S}
        if fitted := self.learner.fit(self._fitted_s):
            self._fitted_s[fitted] = now_s
        every_s = KEEP_LARGE_S if len(self._kept) > LARGE else KEEP_S
        if now_s - self._kept_s >= every_s:
            self._kept_s = now_s
            await self.keep()

    async def keep(self) -> None:
        """Stores the state where it changed. Raises Unavailable."""
        if not self.begun:
            return  # nothing is known yet of what is kept there
        try:
            # In a thread: megabytes are packed, and then on their way to a disk or a server.
            await asyncio.to_thread(self._write, self.learner.state())
        except ValueError as error:
            self._complain(f"what was learnt is not kept: {error}")

    def _write(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError where JSON or the store cannot hold the state; Unavailable."""
        if self.own is not None:
            with contextlib.suppress(ValueError):  # a damaged state is replaced
                state = joined(state, unpacked(self.store.learnt(NAME)), _works_of(self.own))
        content = packed(state)
        if content == self._kept:
            return
        try:
            self.store.keep_learnt(NAME, content)
        except ValueError:
            self._kept = content  # too long: it is not tried again until it is another
            raise
        self._kept = content

    def learnt(self, job: str) -> Learnt:
        """For the board, of a job with a profile."""
        lesson = self.learner.learning_stats(job)
        begun_from = "other jobs" if self.learner.predicted(job) else "the profile"
        return Learnt(text=sentence(lesson, begun_from), refused=lesson.refused)

    def _complain(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            self.audit.post("learn", "", text)


def _works_of(own: Callable[[str], bool]) -> Callable[[str], bool]:
    """The workloads of these jobs: a job's evaluation is one of its own (`JobState.workload`)."""
    return lambda workload: own(workload.partition("/")[0])


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


def packed(state: Mapping[str, Any]) -> str:
    """A state as short text; the same state is the same text. Raises ValueError for no number."""
    return base64.b64encode(zlib.compress(_encoded(state).encode(), 1)).decode("ascii")


def _encoded(state: Any, depth: int = ROWS_DEPTH) -> str:
    """JSON, row by row: the interpreter's lock is held for one row, not for all ten thousand."""
    if depth and isinstance(state, dict):
        rows = (f"{json.dumps(key)}:{_encoded(state[key], depth - 1)}" for key in sorted(state))
        return "{" + ",".join(rows) + "}"
    if depth and isinstance(state, list):
        return "[" + ",".join(_encoded(row, 0) for row in state) + "]"
    return json.dumps(state, allow_nan=False, separators=(",", ":"), sort_keys=True)


def unpacked(content: str) -> dict[str, Any]:
    """The state in a text. Raises ValueError where there is none."""
    try:
        state = json.loads(zlib.decompress(base64.b64decode(content, validate=True)))
    except (binascii.Error, zlib.error, ValueError, RecursionError) as error:
        raise ValueError(f"damaged ({error})") from None
    if not isinstance(state, dict):
        raise ValueError("damaged (no mapping)")
    return state
