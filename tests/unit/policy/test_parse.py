"""A policy file becomes exactly the policy it says, or one line."""

import time
from collections.abc import Callable

import pytest

from joulecut_controller.policy.parse import effective_mode, parse
from joulecut_controller.policy.policy import Cost, GpuRef, Mode, Policy, Slo, Verify, policy_json
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Pipeline, Profile
from joulecut_wire import document
from joulecut_wire.errors import BadInput

FULL = """\
apiVersion: joulecut/v1
kind: Policy
mode: recommend
cluster:
  cost: {gpu_hour: 2.5, kwh: 0.08, host_power_w: 150, pue: 1.2}
jobs:
  - name: gpt3-175b
    match:
      gpus: [node1/0-3, node2/0-3]
    slo:
      max_slowdown: 0.5%
      rate: hook
    clocks: {min_mhz: 900, granularity: gpu, min_dwell: 10s}
    pipeline:
      schedule: 1f1b
      stages: 8
      microbatches: 96
      tensor_parallel: 1
      data_parallel: 1
      sync: iteration
      profile: gpt3.csv
      blocking_power_w: 83.64
    ranks: {order: tp-cp-ep-dp-pp, source: list}
    mode: enforce
    verify: {holdout: 0%}
  - name: second
    slo:
      min_rate: {value: 3.2, unit: iterations/s}
"""


def profile(stages: int = 8) -> Profile:
    options = tuple(ClockOption(c, 50.0 / c, 0.01 * c) for c in range(855, 1411, 15))
    return Profile(
        {(stage, kind): options for stage in range(stages) for kind in KINDS}, "gpt3.csv"
    )


def read(text: str | bytes, profiles: Callable[[str], Profile] = lambda _: profile()) -> Policy:
    raw = text.encode() if isinstance(text, str) else text
    return parse(document.parse(raw, "policy.yaml"), profiles)


def refusal(text: str | bytes) -> str:
    with pytest.raises(BadInput) as caught:
        read(text)
    return str(caught.value)


def test_the_whole_file_becomes_a_policy() -> None:
    asked: list[str] = []

    def profiles(path: str) -> Profile:
        asked.append(path)
        return profile()

    policy = read(FULL, profiles)
    first, second = policy.jobs
    assert asked == ["gpt3.csv"]
    assert policy.mode == "recommend"
    assert policy.cost == Cost(gpu_hour=2.5, kwh=0.08, host_power_w=150.0, pue=1.2)
    assert policy.source == "policy.yaml"
    assert first.name == "gpt3-175b"
    assert first.mode == "enforce"
    assert first.slo == Slo(max_slowdown=0.005)
    assert first.gpus == tuple(GpuRef(node, i) for node in ("node1", "node2") for i in range(4))
    assert first.clocks.min_mhz == 900
    assert first.clocks.min_dwell_s == 10.0
    assert first.pipeline == Pipeline("1f1b", 8, 96)
    assert first.profile == profile()
    assert first.blocking_power_w == 83.64
    assert first.ranks == "list"
    assert second.mode == "recommend"
    assert second.slo == Slo(max_iteration_time_s=1 / 3.2, given_as="min_rate")
    assert second.gpus == ()
    assert second.pipeline is None
    assert second.ranks == "hook"


def test_hold_outs_are_off_unless_asked_for() -> None:
    (first, second) = read(FULL).jobs
    assert (first.verify, second.verify) == (Verify(0.0, 300.0), Verify(0.0, 300.0))
    asked = FULL.replace("verify: {holdout: 0%}", "verify: {holdout: 2.5%, window: 10min}")
    assert read(asked).jobs[0].verify == Verify(0.025, 600.0)
    budget = asked.replace("cluster:", "cluster:\n  power_budget_w: 5000")
    assert "contradicts cluster.power_budget_w" in refusal(budget)
    assert read(budget.replace("2.5%", "0%")).power_budget_w == 5000.0


def test_what_the_grid_emits_and_whose_a_job_is() -> None:
    base = read(FULL)
    assert base.cost.co2_g_per_kwh is None
    assert {job.tenant for job in base.jobs} == {""}
    told = FULL.replace("pue: 1.2", "pue: 1.2, co2_g_per_kwh: 380").replace(
        "verify: {holdout: 0%}", "tenant: physics"
    )
    policy = read(told)
    assert policy.cost.co2_g_per_kwh == 380.0
    assert [job.tenant for job in policy.jobs] == ["physics", ""]
    assert policy_json(policy) != policy_json(base), "it is shown"


@pytest.mark.parametrize(
    ("slo", "deadline_s"),
    [
        ("{max_slowdown: 2%}", 5.1),
        ("{max_slowdown: 0}", 5.015),  # not measurably slower
        ("{max_slowdown: 0, tolerance: 0%}", 5.0),
        ("{max_slowdown: 1%, tolerance: 0.5%}", 5.05),
        ("{max_iteration_time: 6100ms}", 6.1),
        ("{min_rate: {value: 12, unit: iterations/min}}", 5.0),
        ("{min_rate: {value: 600, unit: iterations/h}}", 6.0),
    ],
)
def test_every_target_gives_a_deadline(slo: str, deadline_s: float) -> None:
    policy = read(f"apiVersion: joulecut/v1\nkind: Policy\njobs: [{{name: a, slo: {slo}}}]")
    assert policy.jobs[0].slo.deadline_s(5.0) == pytest.approx(deadline_s)


@pytest.mark.parametrize(
    ("policy", "job", "effective"),
    [
        ("recommend", None, "recommend"),
        ("recommend", "enforce", "enforce"),
        ("recommend", "off", "off"),
        ("enforce", None, "enforce"),
        ("enforce", "recommend", "recommend"),
        ("off", None, "off"),
        ("off", "enforce", "off"),
    ],
)
def test_a_jobs_own_mode_wins_except_over_off(
    policy: Mode, job: Mode | None, effective: Mode
) -> None:
    assert effective_mode(policy, job) == effective
    own = f", mode: {job}" if job else ""
    text = (
        f"apiVersion: joulecut/v1\nkind: Policy\nmode: {policy}\n"
        f"jobs: [{{name: a, slo: {{max_slowdown: 1%}}{own}}}]"
    )
    assert read(text).jobs[0].mode == effective


def test_a_profile_that_does_not_fit_is_refused_where_it_is_named() -> None:
    with pytest.raises(BadInput) as caught:
        read(FULL, lambda _: profile(stages=7))
    assert str(caught.value) == (
        "policy.yaml:21: jobs[0].pipeline.profile: profile has 7 stages, pipeline has 8; "
        "allowed: stages 0 to 7, each with forward, backward"
    )


def test_a_fault_inside_the_profile_names_both_places() -> None:
    def broken(path: str) -> Profile:
        raise BadInput(f"{path}:7", "time is nan", "seconds above 0")

    with pytest.raises(BadInput) as caught:
        read(FULL, broken)
    assert str(caught.value) == (
        "policy.yaml:21: jobs[0].pipeline.profile: gpt3.csv:7: time is nan; "
        "allowed: seconds above 0"
    )


def test_a_profile_in_milliseconds_is_refused() -> None:
    rows = {key: (ClockOption(1410, 400.0, 100.0),) for key in profile().options}
    with pytest.raises(BadInput, match=r"milliseconds\?; allowed: times in seconds"):
        read(FULL, lambda _: Profile(rows))


def test_a_job_file_is_no_policy() -> None:
    assert "joulecut plan" in refusal("pipeline: {stages: 8}\nprofile: a.csv\n")


def test_profiles_are_asked_for_only_once_the_file_is_right() -> None:
    def never(path: str) -> Profile:
        raise AssertionError(path)

    with pytest.raises(BadInput, match="granularity"):
        read(FULL.replace("granularity: gpu", "granularity: fine"), never)


def test_a_policy_without_a_granularity_takes_the_finest() -> None:
    """None: the choice depends on what an enforced job had before."""
    assert read(FULL).jobs[0].clocks.granularity == "gpu"
    assert read(FULL.replace("granularity: gpu, ", "")).jobs[0].clocks.granularity == "auto"
    four = read(FULL.replace("granularity: gpu", "granularity: changes, changes: 4")).jobs[0].clocks
    assert (four.granularity, four.changes) == ("changes", 4)


@pytest.mark.parametrize("word", ["edge", "computation"])
def test_a_granularity_that_went_is_read_as_changes_with_a_warning(word: str) -> None:
    job = read(FULL.replace("granularity: gpu", f"granularity: {word}")).jobs[0]
    assert (job.clocks.granularity, job.clocks.changes) == ("changes", 2)
    assert f"granularity {word} means changes" in job.warning


HEAD = "apiVersion: joulecut/v1\nkind: Policy\nmode: recommend\njobs:\n"
ONE = HEAD + "  - name: a\n    slo: {max_slowdown: 1%}\n    match: {gpus: ["


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            HEAD + "- {}\n" * 20_001,
            "policy.yaml:4: jobs: 20001 jobs; allowed: at most 20000",
        ),
        (
            ONE + "a/0-63," * 20_001 + "]}\n",
            "policy.yaml:7: jobs[0].match.gpus: more than 20000 entries of GPUs; allowed: ranges",
        ),
    ],
)
def test_a_file_of_too_much_is_refused_before_anything_is_made_of_it(text: str, line: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(text)
    assert str(refused.value).startswith(line)


def test_a_file_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "NODES_MAX", 100)
    with pytest.raises(BadInput, match=r"^policy.yaml: too many keys and values; allowed: at most"):
        read(HEAD + "- {a: b}\n" * 100)


def test_a_long_list_of_gpus_costs_a_time_in_proportion() -> None:
    text = ONE + ",".join(f"n{number}/0-63" for number in range(2000)) + "]}\n"
    begun_s = time.process_time()
    assert len(read(text).jobs[0].gpus) == 128_000
    assert time.process_time() - begun_s < 10.0  # 0.5 s; each GPU against each other took minutes


@pytest.mark.parametrize("where", ["file", "job"])
def test_a_job_that_is_off_needs_no_target(where: str) -> None:
    file, job = ("mode: off\n", "") if where == "file" else ("", "    mode: off\n")
    text = f"apiVersion: joulecut/v1\nkind: Policy\n{file}jobs:\n  - name: a\n{job}"
    assert [one.mode for one in read(text).jobs] == ["off"]
    with pytest.raises(BadInput, match="no target"):
        read(text.replace("off", "recommend"))


def test_unused_gpus_are_recommended_about_by_default() -> None:
    head = "apiVersion: joulecut/v1\nkind: Policy\nidle: "
    idle = read(head + "{}").idle
    assert (idle.after_s, idle.mode) == (300.0, "recommend")
    assert read(head + "{after: 20min, mode: 'off'}").idle.after_s == 1200.0
