"""Hooks of training scripts, in processes of their own, against frameworks of the real ones' form.

The real packages run in `tests/long`-marked tests, where they are installed.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import joulecut
from joulecut import Reporter
from joulecut.recorder import REPLACED_STEPS, IterationRecorder
from joulecut_wire.messages import IterationReport, PipelineShape
from joulecut_wire.reports import decode

JOULECUT = str(Path(sys.executable).with_name("joulecut"))

# As torch defines them: a global hook of optimizer steps, and the base of pipeline stages.
OPTIMIZER = """\
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class SGD:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
"""
STAGE = """\
import time
class _PipelineStageBase:
    def __init__(self, stage_index, num_stages):
        self.stage_index, self.num_stages = stage_index, num_stages
    def forward_one_chunk(self, fwd_chunk_id, args=(), kwargs=None):
        time.sleep(0.001)
    def backward_one_chunk(self, bwd_chunk_id, loss=None, full_backward=True):
        time.sleep(0.002)
    def backward_weight_one_chunk(self, bwd_chunk_id):
        time.sleep(0.001)
"""
SCHEDULES = """\
class PipelineScheduleSingle:
    def __init__(self, stage, n_microbatches):
        self._stage, self._n_microbatches = stage, n_microbatches
        self._num_stages = stage.num_stages
class PipelineScheduleMulti:
    def __init__(self, stages, n_microbatches):
        self._stages, self._n_microbatches = stages, n_microbatches
class Schedule1F1B(PipelineScheduleSingle):
    pass
"""
CUDA = "def is_initialized():\n    return False\n"
SCRIPT = """\
import torch.cuda
from torch.optim.optimizer import SGD
from torch.distributed.pipelining.schedules import Schedule1F1B
from torch.distributed.pipelining.stage import _PipelineStageBase
stage = _PipelineStageBase(3, 4)
schedule = Schedule1F1B(stage, 2)
first, second = SGD(), SGD()
for step in range(5):
    for microbatch in range(2):
        stage.forward_one_chunk(microbatch)
        stage.backward_one_chunk(microbatch, full_backward=True)
    first.step()
    second.step()
"""


class Job:
    """A folder with a framework and a script, and the socket of an agent."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = home / "jobs.sock"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.setblocking(False)
        for name, text in {
            "torch/__init__.py": "",
            "torch/cuda.py": CUDA,
            "torch/optim/__init__.py": "",
            "torch/optim/optimizer.py": OPTIMIZER,
            "torch/distributed/__init__.py": "",
            "torch/distributed/pipelining/__init__.py": "",
            "torch/distributed/pipelining/stage.py": STAGE,
            "torch/distributed/pipelining/schedules.py": SCHEDULES,
        }.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)

    def run(
        self, script: str, *command: str, python: str = sys.executable, said: str = "", **env: str
    ) -> list[IterationReport]:
        (self.home / "train.py").write_text(textwrap.dedent(script))
        done = subprocess.run(
            [*command, python, str(self.home / "train.py")],
            env={
                **os.environ, "JOULECUT_SOCKET": str(self.path), "JOULECUT_UUID": "GPU-x",
                "JOULECUT_JOB": "demo", "PYTHONPATH": str(self.home), **env,
            },
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, said)
        return self.heard()

    def heard(self) -> list[IterationReport]:
        found = []
        while True:
            try:
                report = decode(self.socket.recv(10_000))
            except BlockingIOError:
                return found
            assert isinstance(report, IterationReport)
            found.append(report)


@pytest.fixture
def job() -> Iterator[Job]:
    with tempfile.TemporaryDirectory(prefix="jc") as home:
        job = Job(Path(home))
        yield job
        job.socket.close()


def _check(reports: list[IterationReport]) -> None:
    """Four iterations: the first step only begins to count."""
    assert [report.iteration for report in reports] == [1, 2, 3, 4]
    for report in reports:
        assert (report.job, report.uuid, report.stage) == ("demo", "GPU-x", 3)
        assert report.shape == PipelineShape("1f1b", 4, 2)
        busy = {op.kind: (op.count, op.busy_s) for op in report.operations}
        assert busy["forward"][0] == busy["backward"][0] == 2
        assert 0.002 <= busy["forward"][1] <= report.duration_s
        assert 0.004 <= busy["backward"][1] <= report.duration_s


def test_joulecut_run_needs_no_change_of_the_script(job: Job) -> None:
    _check(job.run(SCRIPT, JOULECUT, "run", "--"))


@pytest.mark.parametrize("where", ["first", "last"])
def test_one_line_before_or_after_the_framework(job: Job, where: str) -> None:
    line = "import joulecut.auto\n"
    imports, rest = SCRIPT.split("stage = ", 1)
    script = line + SCRIPT if where == "first" else f"{imports}{line}stage = {rest}"
    _check(job.run(script))


def test_a_job_with_an_older_python_reports_all_the_same(job: Job) -> None:
    """PyPy of Debian 12 is Python 3.9."""
    python = shutil.which("pypy3") or pytest.skip("no pypy3")
    _check(job.run(SCRIPT, JOULECUT, "run", "--", python=python))


def test_hooks_that_cannot_be_loaded_are_said_once(job: Job) -> None:
    broken = job.home / "broken" / "joulecut"
    shutil.copytree(Path(joulecut.__file__).parent, broken)
    (broken / "recorder.py").write_text("import no_such_module\n")
    script = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''], check=True)\n"
    line = (
        "joulecut: this job's iterations are not reported: ModuleNotFoundError: "
        "No module named 'no_such_module'\n"
    )
    path = f"{broken / 'boot'}{os.pathsep}{job.home}"
    assert job.run(script + SCRIPT, said=line, PYTHONPATH=path) == []


class Optimizer:
    """A name for the recorder."""


def _recorder(monkeypatch: pytest.MonkeyPatch) -> tuple[IterationRecorder, list[int]]:
    """With the numbers that it reports."""
    monkeypatch.setenv("JOULECUT_UUID", "GPU-x")
    told: list[int] = []

    class Told(Reporter):
        def iteration(self, number: int, *_: object, **__: object) -> bool:
            told.append(number)
            return True

    return IterationRecorder(Told), told


@pytest.mark.parametrize("kept", [True, False])
def test_a_job_whose_optimizer_is_replaced_goes_on(
    monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    recorder, told = _recorder(monkeypatch)
    warm_up, main = Optimizer(), Optimizer()
    for _ in range(4):
        recorder.optimizer(warm_up)
    assert len(told) == 3
    if not kept:
        del warm_up
    for _ in range(40):
        recorder.optimizer(main)
    assert len(told) == 3 + (40 - REPLACED_STEPS if kept else 39)


def test_a_critic_that_steps_more_often_ends_no_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, told = _recorder(monkeypatch)
    generator, critic = Optimizer(), Optimizer()
    for _ in range(10):
        recorder.optimizer(generator)
        for _ in range(5):
            recorder.optimizer(critic)
    assert len(told) == 9


def test_every_schedule_of_torch_has_a_name(job: Job) -> None:
    for kind, name in (
        ("ScheduleInterleavedZeroBubble", "zb-h1"), ("ScheduleLoopedBFS", "looped-bfs"),
        ("Schedule1F1B", "1f1b"),
    ):  # fmt: skip
        text = SCHEDULES.replace(
            "Schedule1F1B(PipelineScheduleSingle)", f"{kind}(PipelineScheduleSingle)"
        )
        (job.home / "torch/distributed/pipelining/schedules.py").write_text(text)
        imported = SCRIPT.replace("import Schedule1F1B", f"import {kind}")
        own = f"class Mine({kind}):\n    pass\nschedule = Mine(stage, 2)"
        script = imported.replace("schedule = Schedule1F1B(stage, 2)", own)
        shapes = {report.shape for report in job.run(script, JOULECUT, "run", "--")}
        assert shapes == {PipelineShape(name, 4, 2)}


def test_the_sites_own_first_code_still_runs(job: Job) -> None:
    (job.home / "sitecustomize.py").write_text("import builtins; builtins.own = 7")
    assert len(job.run("assert own == 7\n" + SCRIPT, JOULECUT, "run", "--")) == 4


def test_forked_workers_and_other_threads_do_not_report(job: Job) -> None:
    script = SCRIPT + textwrap.dedent("""
        import os, threading
        other = threading.Thread(target=first.step)
        other.start(); other.join()
        if os.fork() == 0:
            first.step()
            os._exit(0)
        os.wait()
    """)
    assert len(job.run(script, JOULECUT, "run", "--")) == 4


def test_nothing_reaches_the_script_whatever_fails(job: Job) -> None:
    """No agent, a socket that is full, a framework that changed."""
    assert job.run(SCRIPT, JOULECUT, "run", "--", JOULECUT_SOCKET=str(job.home / "gone")) == []
    for name, value, allowed in (
        ("JOULECUT_STAGE", "two", "a pipeline stage from 0"),
        ("JOULECUT_SOCKET", f"/{'x' * 120}", "the path of a socket, at most 107 bytes"),
    ):
        wrong = f"joulecut: warning: {name}: {value!r:.60}; allowed: {allowed}"
        said = f"{wrong}; the command starts anyway\n"
        assert (
            job.run(SCRIPT, JOULECUT, "run", "--", said=said, JOULECUT_UUID="", **{name: value})
            == []
        )
    many = SCRIPT.replace("range(5)", "range(400)").replace("range(2)", "range(0)")
    assert 0 < len(job.run(many, JOULECUT, "run", "--")) < 399
    (job.home / "torch/distributed/pipelining/stage.py").write_text("class Renamed: pass")
    job.run("from torch.distributed.pipelining.stage import Renamed", JOULECUT, "run", "--")


def test_torchtitan_calls_the_handler_with_each_record(job: Job) -> None:
    script = """
        import logging
        import torch.cuda
        from joulecut.titan import register
        logger = logging.getLogger("torchtitan.structured_logger")
        register(structured_logger=logger, rank=0, source="trainer", output_dir="out")
        logger.setLevel(logging.INFO)
        for step in range(1, 6):
            for kind in ("fwd_bwd_start", "fwd_bwd_end"):
                logger.info(kind, extra={"log_type_name": kind, "step": step, "value": 1.0})
    """
    assert [report.iteration for report in job.run(script)] == [1, 2, 3, 4]


def test_deepspeeds_engine_ends_iterations_and_its_optimizers_do_not(job: Job) -> None:
    engine = job.home / "deepspeed/runtime"
    engine.mkdir(parents=True)
    for name in ("deepspeed/__init__.py", "deepspeed/runtime/__init__.py"):
        (job.home / name).write_text("")
    (engine / "engine.py").write_text(
        "from torch.optim.optimizer import SGD\n"
        "class DeepSpeedEngine:\n"
        "    def __init__(self):\n        self.optimizer = SGD()\n"
        "    def _take_model_step(self, lr_kwargs):\n"
        "        self.optimizer.step()\n        self.optimizer.step()\n"
    )
    script = """
        import torch.cuda
        from deepspeed.runtime.engine import DeepSpeedEngine
        engine = DeepSpeedEngine()
        for _ in range(5):
            engine._take_model_step({})
    """
    assert len(job.run(script, JOULECUT, "run", "--")) == 4


def test_marks_are_sent_where_they_are_asked_for(job: Job) -> None:
    (job.home / "train.py").write_text("import joulecut.auto\n" + SCRIPT)
    subprocess.run(
        [sys.executable, str(job.home / "train.py")],
        env={
            **os.environ, "JOULECUT_SOCKET": str(job.path), "JOULECUT_UUID": "GPU-x",
            "PYTHONPATH": str(job.home), "JOULECUT_MARKS": "1",
        },
        check=True,
    )  # fmt: skip
    marks = []
    while True:
        try:
            words = json.loads(job.socket.recv(10_000))
        except BlockingIOError:
            break
        if "mark" in words:
            marks.append((words["mark"], words["kind"], words["microbatch"]))
    one = [
        (mark, kind, m) for m in (0, 1) for kind in ("forward", "backward")
        for mark in ("begin", "end")
    ]  # fmt: skip
    assert marks[: len(one)] == one
