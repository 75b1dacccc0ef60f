"""Savings of a period, by job and tenant: measured, with what is unknown.

Made from records alone, whether their controller runs or not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulecut_controller.policy.policy import Cost
from joulecut_controller.savings.changes import Change
from joulecut_controller.savings.spent import PlanTime, longer_s, plan_times, saved_j, total
from joulecut_controller.savings.wall import Wall, at_the_wall
from joulecut_controller.trust.energy_ledger import Sheet
from joulecut_controller.trust.interval import Interval
from joulecut_controller.trust.paired_difference import usable_windows
from joulecut_controller.trust.saving import Saving, by_shape
from joulecut_controller.trust.window import MeasuredWindow
from joulecut_engine.money import Iteration, Worth, worth

NO_TENANT = "-"
SWITCH = "verify: {holdout: 5%}"


@dataclass(frozen=True, slots=True)
class Known:
    """A job as policy and agents know it; `holdout` is None without a policy."""

    tenant: str = NO_TENANT
    holdout: float | None = None


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job. `saving` is that of its newest shape; the sums are over all its shapes, as far
    as a ratio is known for them, and None where it is known for none.

    `saved_in_windows_j` is the ratio on energy that was measured; `saved_j` also counts the time
    between windows of one plan.
    """

    job: str
    tenant: str
    saving: Saving
    shapes: tuple[Saving, ...]
    spent: PlanTime
    uncounted_j: float  # spent under plans in shapes whose ratio is not known
    saved_in_windows_j: Interval | None
    saved_j: Interval | None
    longer_gpu_s: Interval | None
    wall: Wall | None
    worth: Worth | None


@dataclass(frozen=True, slots=True)
class Sum:
    """Several jobs together. None where nothing is known of any; `unknown` counts such jobs."""

    name: str
    jobs: int
    unknown: int
    saved_j: Interval | None
    wall: Wall | None


@dataclass(frozen=True, slots=True)
class Report:
    """A period from `since` to `until`; where more was kept than was read, the windows are
    `truncated` or the `changes_cut`.
    """

    since_unix_s: float
    until_unix_s: float
    prices: Cost
    jobs: tuple[JobReport, ...]
    tenants: tuple[Sum, ...]
    total: Sum
    truncated: bool = False
    changes: tuple[Change, ...] = ()  # of one job's clocks
    changes_cut: bool = False
    energy: Sheet | None = None  # of all GPUs by owner; None where none was booked


def report(
    windows: Sequence[MeasuredWindow],
    *,
    since_unix_s: float,
    until_unix_s: float,
    prices: Cost,
    known: Mapping[str, Known],
    job: str = "",
) -> Report:
    """Of the windows that ended in the period. `known` are the jobs of a policy: those without
    a window are in the report too, with what would have to be done. With `job` it is of that one.
    """
    by_job: dict[str, list[MeasuredWindow]] = {
        name: [] for name in known if job in {"", name} and not name.endswith(":")
    }
    for window in windows:
        if since_unix_s <= window.ended_unix_s <= until_unix_s:
            by_job.setdefault(window.job, []).append(window)
    jobs = tuple(
        _job(name, of_job, _about(known, name), prices, until_unix_s)
        for name, of_job in sorted(by_job.items())
    )
    names = sorted({one.tenant for one in jobs})
    return Report(
        since_unix_s=since_unix_s,
        until_unix_s=until_unix_s,
        prices=prices,
        jobs=jobs,
        tenants=tuple(
            _sum(name, [one for one in jobs if one.tenant == name], prices) for name in names
        ),
        total=_sum("all", jobs, prices),
    )


def _about(known: Mapping[str, Known], name: str) -> Known:
    return known.get(name) or known.get(name.partition(":")[0] + ":") or Known()


def _job(
    job: str,
    windows: Sequence[MeasuredWindow],
    about: Known,
    prices: Cost,
    until_unix_s: float,
) -> JobReport:
    shapes = by_shape(windows) or (_unmeasured(job, about, until_unix_s),)
    times, spent, uncounted_j = plan_times(usable_windows(windows)), PlanTime(), 0.0
    in_windows, everywhere, longer = list[Interval](), list[Interval](), list[Interval]()
    for one in shapes:
        time = times.get((one.shape, one.phase), PlanTime())
        spent = spent.plus(time)
        if one.saved_ratio is None or one.slowdown_ratio is None:
            uncounted_j += time.all.energy_j
            continue
        in_windows.append(saved_j(one.saved_ratio, time.measured))
        everywhere.append(saved_j(one.saved_ratio, time.all))
        longer.append(longer_s(one.slowdown_ratio, time.all).scaled(one.gpus))
    newest = max(shapes, key=lambda one: one.ended_unix_s)
    saved, longer_gpu_s = total(everywhere), total(longer)
    return JobReport(
        job=job,
        tenant=about.tenant,
        saving=newest,
        shapes=shapes,
        spent=spent,
        uncounted_j=uncounted_j,
        saved_in_windows_j=total(in_windows),
        saved_j=saved,
        longer_gpu_s=longer_gpu_s,
        wall=at_the_wall(saved, longer_gpu_s, prices) if saved and longer_gpu_s else None,
        worth=_worth(newest, prices),
    )


def _unmeasured(job: str, about: Known, until_unix_s: float) -> Saving:
    if about.holdout:
        share = f"{100.0 * about.holdout:.3g} %"
        reason = f"nothing measured yet: hold-outs are on, {share} of its time"
    else:
        reason = f"nothing measured: `{SWITCH}` in its policy switches hold-outs on"
    return Saving(job, "", 0, until_unix_s, until_unix_s, 0, 0, reason=reason)


def _worth(saving: Saving, given: Cost) -> Worth | None:
    """As measured; None where a price is missing or both are zero: nothing is filled in."""
    default = saving.default_time_s, saving.default_energy_j
    plan = saving.plan_time_s, saving.plan_energy_j
    if saving.saved_ratio is None or None in (*default, *plan) or not saving.gpus:
        return None
    if given.gpu_hour is None or given.kwh is None or not (given.gpu_hour or given.kwh):
        return None
    before, under = (Iteration(one[0] or 0.0, one[1] or 0.0) for one in (default, plan))
    return worth(before, under, saving.gpus, given.prices())


def _sum(name: str, jobs: Sequence[JobReport], prices: Cost) -> Sum:
    saved = [one.saved_j for one in jobs if one.saved_j is not None]
    longer = [one.longer_gpu_s for one in jobs if one.saved_j and one.longer_gpu_s is not None]
    whole, time = total(saved), total(longer)
    return Sum(
        name=name,
        jobs=len(jobs),
        unknown=len(jobs) - len(saved),
        saved_j=whole,
        wall=at_the_wall(whole, time, prices) if whole and time else None,
    )
