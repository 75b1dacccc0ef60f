"""Shadow scores: recommendations compared with clocks that ran anyway; is enforcing advisable?

A job in mode recommend does not run at the recommended clocks. But clocks change for other reasons
(a site's lock, a power cap, an enforced hour, the default itself), and whenever a GPU runs at a
clock that a promise covers, the promise can be scored. A promise is stored before and never changed
afterwards. Pure.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import msgspec

TOPIC = "shadow"
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # what every float holds exactly

# What a plan may be off by and still be worth enforcing: half of what makes a graph count as
# unexplained (3 %) in time; in energy a usual saving must stay clearly above it.
TIME_ERROR_MAX = 0.02
ENERGY_ERROR_MAX = 0.05
EXPLAINED_MAX = 0.03  # as the planner has it
# A clock so near to one that was seen counts as checked too: a model that is right there cannot
# be far off here (one step of learning is 4.5 %).
NEAR_RATIO = 0.03
AGE_S_MAX = 7 * 86_400.0  # of a score: a job, its data and its room change
SHARE_CHECKED_MIN = 0.5  # of the clocks to be lowered; the rest rests on the same model
QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class Promised:
    """What one GPU's operations are predicted to take and draw at one clock: mean seconds and
    watts by kind.
    """

    uuid: str
    clock_mhz: Count
    time_s: Mapping[str, float]
    power_w: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Promise:
    """One recommendation, as it was made. Times and joules of one iteration of the job.

    `lowered` has the GPUs that were to run below their default clock, `default` what the same
    model says of all of them without any lock. The model's own default iteration is
    `default_time_s`; `default_energy_j` is for the measured duration of one.
    """

    job: str
    shape: str
    generation: Count
    made_at_unix_s: float
    iteration_time_s: float
    energy_j: float
    default_time_s: float
    default_energy_j: float
    microbatches: Count
    blocking_power_w: float
    lowered: tuple[Promised, ...]
    default: tuple[Promised, ...]


@dataclass(frozen=True, slots=True)
class Observed:
    """One GPU over one interval at one clock: mean seconds of an operation by kind, of a whole
    iteration, and mean watts over whole iterations, waiting included.
    """

    uuid: str
    clock_mhz: int
    busy_s: Mapping[str, float]
    iteration_s: float
    power_w: float | None


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one promise: predicted over measured, minus 1."""

    job: str
    shape: str
    generation: Count
    uuid: str
    clock_mhz: Count
    lowered: bool
    time_ratio: float
    energy_ratio: float | None
    at_unix_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether enforcing is advisable, in one line; errors are of scores, None without any.

    `missing` is the part of `text` that speaks against it.
    """

    yes: bool
    text: str
    missing: str = ""
    scores: int = 0
    time_error: float | None = None
    energy_error: float | None = None


@dataclass(frozen=True, slots=True)
class ShadowState:
    """What else speaks for or against: the newest promise, and the job as it stands.

    `baseline_s` and `baseline_j` are measured at default clocks, None until then; `slack` is the
    room that the plan leaves before the deadline, as a share of it. `doubt` is why no command may
    be sent for the job now, `ranks` who says which GPU works which stage.
    """

    promise: Promise | None
    baseline_s: float | None
    baseline_j: float | None
    slack: float | None
    doubt: str = ""
    ranks: str = "reported by the job"


def scored(promise: Promise, one: Promised, seen: Observed, at_unix_s: float) -> Score | None:
    """None where the kinds of work do not fit together."""
    if set(one.time_s) != set(seen.busy_s) or not all(seen.busy_s.values()):
        return None
    told_s, took_s = sum(one.time_s.values()), sum(seen.busy_s.values())
    energy_ratio = None
    if seen.power_w:
        energy_ratio = _drawn_w(promise, one, seen) / seen.power_w - 1.0
    return Score(
        job=promise.job,
        shape=promise.shape,
        generation=promise.generation,
        uuid=one.uuid,
        clock_mhz=one.clock_mhz,
        lowered=any(one is mine for mine in promise.lowered),
        time_ratio=told_s / took_s - 1.0,
        energy_ratio=energy_ratio,
        at_unix_s=at_unix_s,
    )


def _drawn_w(promise: Promise, one: Promised, seen: Observed) -> float:
    """Predicted mean power over a measured iteration: at work as promised, else waiting."""
    busy_s = promise.microbatches * sum(one.time_s.values())
    work_j = promise.microbatches * sum(one.time_s[k] * one.power_w[k] for k in one.time_s)
    waiting_s = max(0.0, seen.iteration_s - busy_s)
    return (work_j + promise.blocking_power_w * waiting_s) / max(seen.iteration_s, busy_s)


def verdict(state: ShadowState, scores: Iterable[Score], now_unix_s: float) -> Verdict:
    """Advisable once the clocks to be lowered were seen, and every figure was near enough. Of
    scores of one GPU at one clock the newest counts.
    """
    promise = state.promise
    if promise is None:
        return Verdict(yes=False, text="not yet: nothing was recommended so far")
    mine = list(
        {
            (one.uuid, one.clock_mhz): one
            for one in scores  # oldest first
            if one.shape == promise.shape and now_unix_s - one.at_unix_s <= AGE_S_MAX
        }.values()
    )
    checked = _checked(promise, mine)
    time_error = _quantile(abs(one.time_ratio) for one in mine)
    energy_error = _quantile(abs(one.energy_ratio) for one in mine if one.energy_ratio is not None)
    words = list(_words(state, promise, checked, time_error, energy_error))
    said = "; ".join(word for _, word in words)
    missing = "; ".join(word for good, word in words if not good)
    count = "1 score" if len(mine) == 1 else f"{len(mine)} scores"
    text = f"not yet: {said}" if missing else f"advisable: {count}, {said}"
    return Verdict(not missing, text, missing, len(mine), time_error, energy_error)


def _words(
    state: ShadowState,
    promise: Promise,
    checked: int,
    time_error: float | None,
    energy_error: float | None,
) -> Iterable[tuple[bool, str]]:
    """Each thing that has to be right, whether it is, and its figure."""
    wanted = len(promise.lowered)
    enough = checked >= math.ceil(SHARE_CHECKED_MIN * wanted)
    yield enough, f"predictions checked at {checked} of {wanted} clocks"
    if state.doubt:
        yield False, state.doubt
    if time_error is not None:
        yield time_error <= TIME_ERROR_MAX, f"time error P95 {_share(time_error)}"
    if energy_error is not None:
        yield energy_error <= ENERGY_ERROR_MAX, f"energy P95 {_share(energy_error)}"
    if state.baseline_s is None:
        yield False, "baseline not steady"
        return
    off = abs(promise.default_time_s / state.baseline_s - 1.0)
    yield off <= EXPLAINED_MAX, f"iteration time prediction error {_share(off)}"
    if state.baseline_j:
        off = abs(promise.default_energy_j / state.baseline_j - 1.0)
        yield off <= ENERGY_ERROR_MAX, f"energy prediction error {_share(off)}"
    yield True, "baseline steady"
    if state.slack is not None:
        yield state.slack >= 0.0, f"SLO slack {_share(state.slack)}"
    if not state.doubt:
        yield True, f"ranks {state.ranks}"


def _checked(promise: Promise, scores: Iterable[Score]) -> int:
    """Of the clocks to be lowered: those seen on that GPU or nearly so, whichever plan it was."""
    seen: dict[str, set[int]] = {}
    for score in scores:
        if score.lowered:
            seen.setdefault(score.uuid, set()).add(score.clock_mhz)
    return sum(
        any(
            abs(mhz - one.clock_mhz) <= NEAR_RATIO * one.clock_mhz for mhz in seen.get(one.uuid, ())
        )
        for one in promise.lowered
    )


def _share(ratio: float) -> str:
    return f"{100.0 * ratio:.1f} %"


def _quantile(values: Iterable[float]) -> float | None:
    """The P95, by nearest rank; None of nothing."""
    ranked = sorted(values)
    return ranked[math.ceil(QUANTILE * len(ranked)) - 1] if ranked else None


def to_json(one: Promise | Score) -> str:
    """Raises ValueError where a number is not finite."""
    what = "promise" if isinstance(one, Promise) else "score"
    return json.dumps({"what": what, **asdict(one)}, allow_nan=False, separators=(",", ":"))


class _Kind(msgspec.Struct):
    what: Literal["promise", "score"]


def from_json(text: str) -> Promise | Score:
    """Keys of a newer version are left out. Raises ValueError for anything else."""
    try:
        if msgspec.json.decode(text, type=_Kind).what == "score":
            return msgspec.json.decode(text, type=Score)
        return msgspec.json.decode(text, type=Promise)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"no shadow record: {error}") from None
