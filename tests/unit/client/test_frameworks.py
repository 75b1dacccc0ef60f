"""The hooks in real frameworks, on CPUs: skipped where a framework is not installed."""

import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulecut_wire.messages import IterationReport, PipelineShape
from joulecut_wire.reports import decode

pytestmark = pytest.mark.long
STEPS = 5
LIMIT_S = 300.0
PIPELINE = """
    import sys, torch, torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
    dist.init_process_group("gloo")
    rank, size, chunks = dist.get_rank(), dist.get_world_size(), int(sys.argv[1])
    parts = [torch.nn.Linear(64, 64) for _ in range(chunks)]
    stages = [
        PipelineStage(part, rank + size * i, size * chunks, torch.device("cpu"))
        for i, part in enumerate(parts)
    ]
    loss = torch.nn.functional.mse_loss
    if chunks == 1:
        schedule = Schedule1F1B(stages[0], 8, loss_fn=loss)
    else:
        schedule = ScheduleInterleaved1F1B(stages, 8, loss_fn=loss)
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.01)
    batch = torch.randn(32, 64)
    for _ in range(5):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(batch)
        elif rank == size - 1:
            schedule.step(target=batch)
        else:
            schedule.step()
        optimizer.step()
    dist.destroy_process_group()
"""
TRAINER = """
    import tempfile, torch
    from transformers import Trainer, TrainingArguments
    from joulecut.transformers import JoulecutCallback
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)
        def forward(self, x=None, labels=None):
            return {"loss": ((self.linear(x).squeeze(-1) - labels) ** 2).mean()}
    data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(64)]
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            out, max_steps=5, gradient_accumulation_steps=2, report_to=[], use_cpu=True,
            save_strategy="no",
        )
        Trainer(Model(), arguments, train_dataset=data, callbacks=[JoulecutCallback()]).train()
"""
LIGHTNING = """
    import torch, lightning.pytorch as pl
    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)
        def training_step(self, batch, _):
            return (self.linear(batch[0]) ** 2).mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)
    data = torch.utils.data.TensorDataset(torch.randn(40, 4))
    trainer = pl.Trainer(
        max_steps=5, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        accelerator="cpu",
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
"""


class Agent:
    """The receiving end of the socket, and a folder for the script."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(home / "jobs.sock"))
        self.socket.setblocking(False)
        self._found: list[IterationReport] = []

    def run(self, script: str, *command: str, arguments: tuple[str, ...] = ()) -> None:
        path = self.home / "train.py"
        path.write_text(textwrap.dedent(script))
        env = {"JOULECUT_SOCKET": str(self.home / "jobs.sock"), "JOULECUT_UUID": "GPU-x"}
        # A socket's queue is short: it is emptied while the ranks run.
        with subprocess.Popen(
            [*command, str(path), *arguments], env={**os.environ, **env}
        ) as process:
            until_s = time.monotonic() + LIMIT_S
            while process.poll() is None:
                assert time.monotonic() < until_s
                self._found += self._received()
                time.sleep(0.01)
        assert process.returncode == 0

    def reports(self) -> list[IterationReport]:
        return self._found + self._received()

    def _received(self) -> list[IterationReport]:
        found = []
        while True:
            try:
                report = decode(self.socket.recv(10_000))
            except BlockingIOError:
                return found
            assert isinstance(report, IterationReport)
            found.append(report)


@pytest.fixture
def agent() -> Iterator[Agent]:
    with tempfile.TemporaryDirectory(prefix="jc") as home:
        agent = Agent(Path(home))
        yield agent
        agent.socket.close()


@pytest.mark.parametrize(("chunks", "schedule"), [(1, "1f1b"), (2, "interleaved-1f1b")])
def test_pipelines_of_torch_under_joulecut_run(agent: Agent, chunks: int, schedule: str) -> None:
    pytest.importorskip("torch")
    joulecut = str(Path(sys.executable).with_name("joulecut"))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4")
    agent.run(PIPELINE, joulecut, "run", "--", *torchrun, arguments=(str(chunks),))
    reports = agent.reports()
    assert Counter(report.stage for report in reports) == dict.fromkeys(range(4), STEPS - 1)
    for report in reports:
        assert report.shape == PipelineShape(schedule, 4, 8)
        assert {op.kind: op.count for op in report.operations} == {
            "forward": 8 * chunks,
            "backward": 8 * chunks,
        }
        assert 0.0 < sum(op.busy_s for op in report.operations) <= report.duration_s
        assert len(report.order) == 16 * chunks


def test_the_trainer_of_hugging_face_with_one_callback(agent: Agent) -> None:
    pytest.importorskip("transformers")
    agent.run(TRAINER, sys.executable)
    assert [report.iteration for report in agent.reports()] == [1, 2, 3, 4]


def test_lightning_needs_nothing(agent: Agent) -> None:
    pytest.importorskip("lightning")
    agent.run(LIGHTNING, sys.executable)
    assert [report.iteration for report in agent.reports()] == [1, 2, 3, 4]
