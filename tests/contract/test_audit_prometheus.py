"""`joulecut audit` against a real Prometheus with a day of dcgm-exporter's series in it."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commands
import pytest
from gpu_history import Gpu, Row, State, openmetrics, ours, serving

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="no prometheus installed"),
]
HOUR_S, DAY_S = 3600.0, 86_400.0

IDLE = State(power_w=60.0)


def _pod(job: str, index: int) -> tuple[tuple[str, str], ...]:
    return ("namespace", "train"), ("pod", f"{job}-worker-{index}"), ("container", "main")


def _gpt3(index: int) -> Gpu:
    """Eight GPUs of one job from 2 h to 20 h."""
    busy = State(
        power_w=300.0 if index == 3 else 380.0,
        clock_mhz=1410.0,
        busy_percent=99.0,
        labels=_pod("gpt3", index),
        tensor_ratio=0.41,
    )
    return Gpu("a", index, lambda s: busy if 2 * HOUR_S < s <= 20 * HOUR_S else IDLE)


def _slurm(index: int) -> Gpu:
    """Four GPUs of a Slurm job all day."""
    busy = State(
        power_w=250.0 if index == 1 else 350.0,
        clock_mhz=1395.0,
        busy_percent=97.0,
        labels=(("hpc_job", "4711"),),
    )
    return Gpu("b", index, lambda s: busy)


def _alone(index: int) -> Gpu:
    """One GPU with a job of its own that sits there doing nothing for half of the day."""
    labels = (("namespace", "dev"), ("pod", "notebook"))
    at_work = State(330.0, 1365.0, 88.0, labels)
    idle = State(62.0, 210.0, 0.0, labels)
    return Gpu(
        "b", index, lambda s: at_work if s <= 12 * HOUR_S else idle, resets_s=10 * HOUR_S + 20.0
    )


def _no_answer(index: int) -> Gpu:
    """Nobody's, and its exporter was down for three hours."""
    return Gpu("b", index, lambda s: IDLE, silent=(5 * HOUR_S, 8 * HOUR_S))


@dataclass(frozen=True)
class Cluster:
    url: str
    until: str
    gpus: list[Gpu]

    def truth_kwh(self, *owners: str) -> float:
        return sum(g.joules.get(owner, 0.0) for g in self.gpus for owner in owners) / 3.6e6

    def audit(self, *more: str) -> dict[str, Any]:
        done = self.run("--json", *more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        return run("--prometheus", self.url, "--for", "24h", "--until", self.until, *more)


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return commands.run("audit", *argv)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    gpus = [*map(_gpt3, range(8)), *map(_slurm, range(4)), _alone(4), _no_answer(5)]
    end_s = time.time() // 60 * 60 - 300
    text = openmetrics(gpus, end_s - DAY_S, DAY_S)
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end_s))
    with serving(text, tmp_path_factory.mktemp("prometheus")) as url:
        yield Cluster(url, until, gpus)


@pytest.fixture(scope="module")
def found(cluster: Cluster) -> dict[str, Any]:
    return cluster.audit("--kwh", "0.10", "--pue", "1.2")


def _job(found: dict[str, Any], name: str) -> dict[str, Any]:
    [job] = [job for job in found["jobs"] if job["name"] == name]
    return dict(job)


def test_energy_adds_up(cluster: Cluster, found: dict[str, Any]) -> None:
    whole = sum(sum(gpu.joules.values()) for gpu in cluster.gpus) / 3.6e6
    assert found["energy_kwh"] == pytest.approx(whole, rel=0.005)
    parts = [job["energy_kwh"] for job in found["jobs"]]
    parts += [found["no_job"]["energy_kwh"], found["shared_kwh"], found["changed_hands_kwh"]]
    assert sum(parts) == pytest.approx(found["energy_kwh"], rel=1e-9)
    assert found["gpus"] == 14
    assert found["cost"] == pytest.approx(found["energy_kwh"] * 0.12)


def test_each_job_has_its_own(cluster: Cluster, found: dict[str, Any]) -> None:
    pods = [f"gpt3-worker-{index}" for index in range(8)]
    gpt3 = _job(found, "train/gpt3")
    assert gpt3["gpus"] == 8
    assert gpt3["energy_kwh"] == pytest.approx(cluster.truth_kwh(*pods), rel=0.005)
    slurm = _job(found, "4711")
    assert slurm["energy_kwh"] == pytest.approx(cluster.truth_kwh("4711"), rel=0.005)
    free = found["no_job"]
    assert free["energy_kwh"] == pytest.approx(cluster.truth_kwh(""), rel=0.01)


def test_a_driver_that_was_reloaded_loses_no_energy(
    cluster: Cluster, found: dict[str, Any]
) -> None:
    notebook = _job(found, "dev/notebook")
    assert found["counter_resets"] == 1
    assert notebook["energy_kwh"] == pytest.approx(cluster.truth_kwh("notebook"), rel=0.005)
    assert notebook["idle"]["kwh"] == pytest.approx(12 * 0.062, rel=0.01)


def test_a_label_of_the_operators_choice_names_the_job(cluster: Cluster) -> None:
    found = cluster.audit("--job-label", "container")
    assert {job["name"] for job in found["jobs"]} == {"main"}
    done = cluster.run("--job-label", "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert 'no series of this time range has the label "nowhere"; allowed: ' in done.stderr
    assert "container" in done.stderr


def test_a_matcher_chooses_hosts(cluster: Cluster) -> None:
    found = cluster.audit("--match", 'Hostname="b"')
    assert found["gpus"] == 6
    done = cluster.run("--match", 'Hostname="nowhere"')
    assert (done.returncode, done.stdout) == (1, "")
    assert "has no series of dcgm-exporter" in done.stderr
    done = cluster.run("--match", "Hostname=")
    assert done.returncode == 1
    assert "parse error" in done.stderr


def test_our_own_series_tell_the_same(tmp_path: Path) -> None:
    gpus = [*map(_slurm, range(4)), _gpt3(0), _gpt3(3)]
    end_s = time.time() // 60 * 60 - 300
    text = openmetrics(gpus, end_s - 4 * HOUR_S, 4 * HOUR_S, tells=ours)
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end_s))
    with serving(text, tmp_path) as url:
        done = run("--prometheus", url, "--for", "4h", "--until", until, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "Joulecut's agents" in found["source"]
    slurm = _job(found, "4711")
    truth_j = sum(gpu.joules.get("4711", 0.0) for gpu in gpus)
    assert slurm["energy_kwh"] == pytest.approx(truth_j / 3.6e6, rel=0.005)
    assert _job(found, "train/gpt3")["gpus"] == 2


def test_series_without_energy_say_what_to_export(tmp_path: Path) -> None:
    def only_heat(gpu: Gpu, state: State, counter_j: float) -> Iterator[Row]:
        yield "DCGM_FI_DEV_GPU_TEMP", {"UUID": gpu.uuid}, 61.0

    end_s = time.time() // 60 * 60 - 300
    with serving(
        openmetrics([_slurm(0)], end_s - HOUR_S, HOUR_S, tells=only_heat), tmp_path
    ) as url:
        done = run("--prometheus", url, "--for", "1h")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" in done.stderr


@pytest.mark.parametrize(
    ("argv", "status", "word"),
    [
        ((), 2, "no source to audit; allowed: --prometheus URL"),
        (("--prometheus", "http://127.0.0.1:1"), 1, "no Prometheus answers"),
        (("--prometheus", "127.0.0.1:9090"), 2, "is not the URL of a Prometheus"),
        (("--prometheus", "http://10.0.0.1", "--username", "ali"), 2, "without encryption"),
        (("--prometheus", "http://127.0.0.1:1", "--for", "5s"), 2, "at least 60 s"),
        (("--prometheus", "http://127.0.0.1:1", "--pue", "0.5"), 2, "--pue: 0.5"),
        (("--agents", "node1:9431"), 2, "--agents: is gone; allowed: --prometheus URL"),
        (("--policy", "policy.yaml"), 2, "--policy: is gone; allowed: joulecut plan JOB.yaml"),
    ],
)
def test_bad_input_is_one_line(argv: tuple[str, ...], status: int, word: str) -> None:
    done = run(*argv)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.count("\n") == 1
    assert word in done.stderr


def test_a_password_is_asked_for_and_taken(tmp_path: Path) -> None:
    bcrypt = pytest.importorskip("bcrypt")
    end_s = time.time() // 60 * 60 - 300
    text = openmetrics([_slurm(0)], end_s - HOUR_S, HOUR_S)
    hashed = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()
    (tmp_path / "word").write_text("open sesame\n")
    (tmp_path / "wrong").write_text("abracadabra\n")
    with serving(text, tmp_path, web=f"basic_auth_users:\n  ali: {hashed}\n") as url:
        asked = run("--prometheus", url, "--for", "1h")
        assert asked.returncode == 1
        assert asked.stderr.count("\n") == 1
        assert "--password-file" in asked.stderr
        flags = ("--for", "30m", "--username", "ali", "--password-file")
        assert run("--prometheus", url, *flags, str(tmp_path / "wrong")).returncode == 1
        let_in = run("--prometheus", url, *flags, str(tmp_path / "word"))
        assert let_in.returncode == 0, let_in.stderr
        assert "4711" in let_in.stdout
