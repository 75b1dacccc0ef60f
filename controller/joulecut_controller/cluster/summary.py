"""The cluster in a few numbers and one headline, computed from the state of a board."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.cluster.needs import SEVERITIES, Need, cluster_needs, job_needs
from joulecut_controller.cluster.state import State, predicted_saved_ratio, state_of
from joulecut_controller.plan.plan import Plan
from joulecut_controller.trust.default_windows import Account
from joulecut_controller.view import BUDGET_JOB

# As a person asks: what is controlled, what could be, what is on its way, what is not.
STATES: tuple[State, ...] = (
    "enforced", "recommended", "steady", "default", "measuring", "silent", "unplaced",
    "paused", "tripped", "parked", "off",
)  # fmt: skip
QUIET: frozenset[State] = frozenset(("enforced", "recommended", "steady", "parked", "off"))


@dataclass(frozen=True, slots=True)
class Power:
    """Power of all GPUs in watts. `now_w` is measured.

    `without_w` estimates what they would draw at default clocks: the measured power, with the
    measured baseline in place of the power of each job that runs under a plan. The plan's forecast
    stands in (`predicted`) where a job waits for a straggler, since its baseline does not apply,
    and until a window under the new clocks is complete. The GPUs' readings are no substitute for
    that window: they differ from the energy counters, by which the baseline was measured.
    `available_w` is what plans that are only recommended would save, predicted.
    """

    now_w: float
    without_w: float
    predicted: bool
    available_w: float


@dataclass(frozen=True, slots=True)
class GpuCounts:
    """GPUs of all agents. `controlled` hold clocks of a plan under a lease."""

    all: int
    controlled: int
    default: int
    silent: int
    not_controllable: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """One board in brief. `states` counts jobs."""

    headline: str
    needs: tuple[Need, ...]
    power: Power
    gpus: GpuCounts
    nodes: int
    nodes_lost: int
    states: Mapping[State, int]
    account: Account  # of all jobs; measured and promised of those where they are known

    def count(self, severity: str) -> int:
        """How many needs of that severity there are."""
        return sum(need.severity == severity for need in self.needs)


@dataclass(frozen=True, slots=True)
class Part:
    """The jobs of one controller in brief. `waits` wait for a straggler, `saved` are predicted of
    plans that are only recommended, `less_w` and `available_w` as in `Power`. `rows` are those of
    its table of jobs, for the pages of others; `jobs` are those whole that others ask for, as this
    one does for those that it `asks` for.
    """

    states: Mapping[State, int]
    needs: tuple[Need, ...]
    account: Account
    waits: int
    saved: tuple[float, ...]
    less_w: float
    available_w: float
    predicted: bool
    controller: str = ""  # host and port
    rows: tuple[dict[str, Any], ...] = ()
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    asks: tuple[str, ...] = ()

    def has(self, job: str) -> bool:
        return any(row["name"] == job for row in self.rows)


def part_of(board: Board) -> Part:
    """Of the jobs of this board's controller."""
    states = Counter(map(state_of, board.jobs))
    saved = [predicted_saved_ratio(job) for job in board.jobs if state_of(job) == "recommended"]
    less_w, available_w, predicted = _watts(board.jobs)
    return Part(
        states={state: states[state] for state in STATES if states[state]},
        needs=job_needs(board),
        account=_together([job.account for job in board.jobs]),
        waits=sum(job.view.measured.straggling for job in board.jobs),
        saved=tuple(one for one in saved if one is not None),
        less_w=less_w,
        available_w=available_w,
        predicted=predicted,
    )


def parts_of(board: Board) -> list[tuple[float, Part]]:
    """Those of other controllers, with their age in seconds, but for what cannot be read."""
    found = []
    for age_s, content in board.elsewhere:
        with suppress(msgspec.MsgspecError):
            found.append((age_s, msgspec.json.decode(content, type=Part)))
    return found


def cluster_of(board: Board) -> Cluster:
    """The whole cluster: what this controller shows, with the parts of others."""
    parts = [part_of(board), *(part for _, part in parts_of(board))]
    found = [*cluster_needs(board), *(need for part in parts for need in part.needs)]
    found.sort(key=lambda need: SEVERITIES.index(need.severity))
    counted: Counter[State] = Counter()
    for part in parts:
        counted.update(part.states)
    return Cluster(
        headline=headline(board, found, parts),
        needs=tuple(found),
        power=power_of(board),
        gpus=gpu_counts(board),
        nodes=len(board.view.nodes),
        nodes_lost=sum(not node.connected for node in board.view.nodes),
        states={state: counted[state] for state in STATES if counted[state]},
        account=_together([part.account for part in parts]),
    )


def power_of(board: Board) -> Power:
    """Of all GPUs, with the parts of other controllers."""
    shown = [gpu.snapshot for gpu in board.view.gpus.values() if gpu.snapshot is not None]
    now_w = sum(one.power_average_w or 0.0 for one in shown)
    others = (part for _, part in parts_of(board))
    watts = [_watts(board.jobs), *((p.less_w, p.available_w, p.predicted) for p in others)]
    less_w, available_w, predicted = zip(*watts, strict=True)
    return Power(now_w, now_w + sum(less_w), any(predicted), sum(available_w))


def _together(accounts: Sequence[Account]) -> Account:
    predicted_j = sum(one.predicted_j for one in accounts)
    measured_j = [one.measured_j for one in accounts if one.measured_j is not None]
    promised_j = [one.promised_j for one in accounts if one.promised_j is not None]
    if not measured_j:
        return Account(predicted_j)
    return Account(predicted_j, sum(measured_j), sum(promised_j))


def headline(board: Board, found: Sequence[Need], of: Sequence[Part]) -> str:
    """One line: faults first, then plans that wait for a decision; steady only where both are
    absent and every job has what it needs.
    """
    if not board.leads:
        return f"Standby: {board.leader or 'another controller'} leads."
    faults = [need for need in found if need.severity == "fault"]
    parts = []
    if len(faults) == 1:
        about = faults[0].job or faults[0].node
        parts.append(f"1 fault needs a person: {about and f'{about}: '}{faults[0].text}.")
    elif faults:
        parts.append(f"{len(faults)} faults need a person.")
    states: Counter[State] = Counter()
    for part in of:
        states.update(part.states)
    if not states:
        entries = board.policy is not None and board.policy.jobs
        none = "No job has a controller yet." if entries else "No jobs in the policy."
        return " ".join([*parts, none])
    waits = sum(part.waits for part in of)
    if not faults and not waits and QUIET.issuperset(states):
        parts.append("All jobs steady.")
    else:
        said = {"default": "at default clocks"}
        listed = ", ".join(f"{states[one]} {said.get(one, one)}" for one in STATES if states[one])
        parts.append(f"{_jobs(states.total())}: {listed}.")
    if waits:
        parts.append(f"{_jobs(waits)} {'waits' if waits == 1 else 'wait'} for a straggler.")
    parts.append(available([one for part in of for one in part.saved]))
    return " ".join(filter(None, parts))


def available(saved: Sequence[float]) -> str:
    """Plans that only wait for mode enforce, by what they would save; empty without any."""
    if not saved:
        return ""
    least, most = f"{-min(saved):+.1%}", f"{-max(saved):+.1%}"
    energy = (most if least == most else f"{least} to {most}").replace("%", " %")
    plans = f"{len(saved)} plan{'s' if len(saved) > 1 else ''}"
    return f"{plans} available: {energy} energy (recommend)."


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"


def _watts(jobs: Sequence[JobBoard]) -> tuple[float, float, bool]:
    """Watts that plans in force save, those that plans only recommend would, and whether some of
    the first are predicted.
    """
    less_w = available_w = 0.0
    predicted = False
    for job in jobs:
        baseline, current = job.view.measured.baseline, job.view.measured.current
        if job.applied is not None and not job.applied.changes_nothing:
            measured_w = current.power_w if current else None
            if job.view.measured.peer_iteration_time_s is not None or measured_w is None:
                less_w += _forecast_w(job.applied)
                predicted = True
            elif baseline and baseline.power_w:
                less_w += baseline.power_w - measured_w
        elif job.decision is not None and not job.decision.changes_nothing:
            available_w += _forecast_w(job.decision)
    return less_w, available_w, predicted


def _forecast_w(plan: Plan) -> float:
    """Watts that a plan saves, predicted."""
    forecast = plan.forecast
    if forecast is None or not forecast.baseline_time_s or not forecast.iteration_time_s:
        return 0.0
    before_w = forecast.baseline_energy_j / forecast.baseline_time_s
    return before_w - forecast.energy_j / forecast.iteration_time_s


def gpu_counts(board: Board) -> GpuCounts:
    controlled = silent = fixed = 0
    for gpu in board.view.gpus.values():
        fixed += not gpu.description.controllable
        if gpu.snapshot is None:
            silent += 1
        elif gpu.snapshot.lease is not None and gpu.snapshot.lease.job != BUDGET_JOB:
            controlled += 1
    whole = len(board.view.gpus)
    return GpuCounts(whole, controlled, whole - controlled - silent, silent, fixed)
