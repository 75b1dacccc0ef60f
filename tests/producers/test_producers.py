"""What frameworks say is what the agent hears: small real trainings, with the lines of the docs.

A framework that is not installed is skipped (`make producers`). Of each kind one runs in `make
test-long`, the rest nightly.
"""

import signal
from collections.abc import Iterator

import pytest
from driven_agent import agent_on, fake_driver
from real_jobs import Jobs, differ

from joulecut_wire.messages import PipelineShape

LONG, NIGHTLY = pytest.mark.long, pytest.mark.nightly
RUN = ("joulecut", "run", "--")
PLAIN = ("python",)


def torchrun(ranks: int, *more: str) -> tuple[str, ...]:
    return ("torchrun", "--nproc-per-node", str(ranks), *more)


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with fake_driver(8) as driver, agent_on(driver) as agent:
        yield Jobs(agent.start(), driver.uuids)


PIPELINE = """
    import own_clock, torch, torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, schedules
    dist.init_process_group("gloo")
    rank, size, chunks, name = dist.get_rank(), dist.get_world_size(), {chunks}, "{name}"
    parts = [torch.nn.Linear(64, 64) for _ in range(chunks)]
    stages = [
        PipelineStage(part, rank + size * i, size * chunks, torch.device("cpu"))
        for i, part in enumerate(parts)
    ]
    loss = torch.nn.functional.mse_loss
    schedule = getattr(schedules, name)(stages if chunks > 1 else stages[0], 8, loss_fn=loss)
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
        own_clock.ended()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("name", "chunks", "schedule"),
    [
        pytest.param("Schedule1F1B", 1, "1f1b", marks=LONG),
        pytest.param("ScheduleInterleaved1F1B", 2, "interleaved-1f1b", marks=NIGHTLY),
        pytest.param("ScheduleInterleavedZeroBubble", 2, "zb-h1", marks=NIGHTLY),
        pytest.param("ScheduleLoopedBFS", 2, "looped-bfs", marks=NIGHTLY),
    ],
)
def test_torch_pipelines(jobs: Jobs, name: str, chunks: int, schedule: str) -> None:
    pytest.importorskip("torch")
    ran = jobs.run(PIPELINE.format(name=name, chunks=chunks), *RUN, *torchrun(4)).agree(4, 4)
    assert {uuid: reports[0].stage for uuid, reports in ran.heard.items()} == {
        uuid: stage for stage, uuid in enumerate(jobs.uuids[:4])
    }
    for report in ran.all():
        assert report.shape == PipelineShape(schedule, 4, 8)
        counts = {op.kind: op.count for op in report.operations}
        assert counts["forward"] == 8 * chunks
        assert counts.get("backward", 0) + counts.get("input", 0) == 8 * chunks
        assert len(report.order) == sum(counts.values())
        assert 0.0 < sum(op.busy_s for op in report.operations) <= report.duration_s


TWO_PHASES = """
    import own_clock, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer, batch = torch.optim.AdamW(model.parameters()), torch.randn(32, 64)
    for _ in range(2):
        for _ in range(4):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            time.sleep(0.02)
            optimizer.step()
            own_clock.ended()
        with torch.no_grad():
            for _ in range(3):
                model(batch)
                time.sleep(0.02)
    dist.destroy_process_group()
"""
WORKERS = """
    import os, own_clock, time, torch
    torch.multiprocessing.set_start_method("fork")
    data = torch.utils.data.TensorDataset(torch.randn(48, 64))
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2):
        model(batch).square().mean().backward()
        time.sleep(0.02)
        optimizer.step()
        own_clock.ended()
    if os.fork() == 0:
        for _ in range(5):
            optimizer.step()
        os._exit(0)
    os.wait()
"""
RESTART = """
    import os, own_clock, sys, time, torch
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        model(torch.randn(8, 64)).square().mean().backward()
        time.sleep(0.02)
        optimizer.step()
        own_clock.ended()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and step == 3:
            sys.exit(1)
"""


@NIGHTLY
@pytest.mark.parametrize("ranks", [2, 8])
def test_ddp_with_two_phases(jobs: Jobs, ranks: int) -> None:
    pytest.importorskip("torch")
    jobs.run(TWO_PHASES, *RUN, *torchrun(ranks)).agree(ranks, 7)


RAY = """
    import ray.train, ray.train.torch, tempfile
    def work():
        import own_clock, time, torch
        model = ray.train.torch.prepare_model(torch.nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            time.sleep(0.02)
            optimizer.step()
            own_clock.ended()
        own_clock.write()
    with tempfile.TemporaryDirectory() as out:
        ray.train.torch.TorchTrainer(
            work, scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(storage_path=out),
        ).fit()
"""


@NIGHTLY
def test_ray_trains_workers_report(jobs: Jobs) -> None:
    pytest.importorskip("ray.train")
    jobs.run(RAY, *RUN, *PLAIN, RAY_USAGE_STATS_ENABLED="0").agree(2, 4)


@LONG
def test_workers_of_a_data_loader_and_a_fork_report_nothing(jobs: Jobs) -> None:
    pytest.importorskip("torch")
    jobs.run(WORKERS, *RUN, *PLAIN).agree(1, 5)


@NIGHTLY
def test_torchruns_restart_is_heard_from_its_first_iteration(jobs: Jobs) -> None:
    pytest.importorskip("torch")
    ran = jobs.run(RESTART, *RUN, *torchrun(1, "--max-restarts", "1"))
    assert [report.iteration for report in ran.all()] == [1, 2, 3, 1, 2, 3, 4, 5]
    before_s, after_s = sorted(ran.own[jobs.uuids[0]], key=len)
    assert differ([report.duration_s for report in ran.all()], before_s + after_s) <= 0.05


# Megatron's own schedules; only what they allocate on a GPU is allocated on the CPU.
MEGATRON = """
    import own_clock, time, torch, torch.distributed as dist
    zeros = torch.zeros
    def zeros_on_cpu(*sizes, **more):
        return zeros(*sizes, **{**more, "device": "cpu"})
    torch.zeros, torch.Tensor.cuda = zeros_on_cpu, lambda self: self
    torch.cuda.current_device, torch.cuda.synchronize = lambda: "cpu", lambda *_: None
    from megatron.core import parallel_state
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.transformer_config import TransformerConfig
    dist.init_process_group("gloo")
    size, chunks = dist.get_world_size(), CHUNKS
    sizes = {
        "pipeline_model_parallel_size": size,
        "virtual_pipeline_model_parallel_size": chunks if chunks > 1 else None,
    }
    parallel_state.initialize_model_parallel(**sizes)
    class Part(torch.nn.Module):
        model_type, input = ModelType.encoder_or_decoder, None
        config = TransformerConfig(
            num_layers=size * chunks, hidden_size=64, num_attention_heads=4, **sizes,
            pipeline_dtype=torch.float32, batch_p2p_comm=chunks > 1,
            deallocate_pipeline_outputs=False,
        )
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(64, 64)
        def set_input_tensor(self, given):
            self.input = given[0] if isinstance(given, list) else given
        def forward(self, batch):
            time.sleep(0.002)
            return self.linear(batch if self.input is None else self.input)
    parts = [Part() for _ in range(chunks)]
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.01)
    def forward(_, part):
        return part(torch.randn(8, 2, 64)), lambda out: (out.square().mean(), {})
    run = get_forward_backward_func()
    for _ in range(5):
        optimizer.zero_grad()
        run(
            forward_step_func=forward, data_iterator=[None] * chunks, model=parts,
            num_microbatches=8, seq_length=8, micro_batch_size=2,
        )
        optimizer.step()
        own_clock.ended()
    dist.destroy_process_group()
"""


@NIGHTLY
@pytest.mark.parametrize("chunks", [1, 2], ids=["1f1b", "interleaved"])
def test_megatron_cores_pipelines_are_heard_with_their_stages(jobs: Jobs, chunks: int) -> None:
    """Its spans need Megatron-LM; the hooks give the rate, and its parallel state the stages."""
    pytest.importorskip("megatron.core")
    script = MEGATRON.replace("CHUNKS", str(chunks))
    ran = jobs.run(script, *RUN, *torchrun(4)).agree(4, 4)
    assert {uuid: reports[0].stage for uuid, reports in ran.heard.items()} == {
        uuid: stage for stage, uuid in enumerate(jobs.uuids[:4])
    }
    assert {report.shape and report.shape.stages for report in ran.all()} == {4}


TRAINER = """
    import own_clock, tempfile, time, torch
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from joulecut.transformers import JoulecutCallback
    class Clock(TrainerCallback):
        def on_step_end(self, *_, **__):
            own_clock.ended()
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)
        def forward(self, x=None, labels=None):
            time.sleep(0.01)
            return {"loss": ((self.linear(x).squeeze(-1) - labels) ** 2).mean()}
    data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(96)]
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            out, max_steps=5, gradient_accumulation_steps=2, report_to=[], use_cpu=True,
            save_strategy="no", eval_strategy="steps", eval_steps=2,
        )
        Trainer(
            Model(), arguments, train_dataset=data, eval_dataset=data[:8],
            callbacks=[JoulecutCallback(), Clock()],
        ).train()
"""
LIGHTNING = """
    import own_clock, time, torch, lightning.pytorch as pl
    class Clock(pl.Callback):
        def on_train_batch_end(self, *_):
            own_clock.ended()
    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)
        def training_step(self, batch, _):
            time.sleep(0.02)
            return (self.linear(batch[0]) ** 2).mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)
    data = torch.utils.data.TensorDataset(torch.randn(40, 4))
    trainer = pl.Trainer(
        max_steps=5, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        accelerator="cpu", callbacks=[Clock()],
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
"""
FABRIC = """
    import own_clock, time, torch, lightning.fabric
    fabric = lightning.fabric.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(5):
        optimizer.zero_grad()
        fabric.backward(model(torch.randn(4, 4)).square().mean())
        time.sleep(0.02)
        optimizer.step()
        own_clock.ended()
"""
ACCELERATE = """
    import joulecut.auto
    import own_clock, time, torch
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(10):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.randn(4, 4)).square().mean())
            time.sleep(0.01)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            own_clock.ended()
"""


@pytest.mark.parametrize(
    ("package", "script"),
    [
        pytest.param("transformers", TRAINER, marks=LONG, id="hugging face"),
        pytest.param("lightning", LIGHTNING, marks=NIGHTLY, id="lightning"),
        pytest.param("lightning", FABRIC, marks=LONG, id="fabric"),
        pytest.param("accelerate", ACCELERATE, marks=LONG, id="accelerate"),
    ],
)
def test_frameworks_with_the_lines_of_the_docs(jobs: Jobs, package: str, script: str) -> None:
    pytest.importorskip(package)
    jobs.run(script, *PLAIN).agree(1, 4)


DEEPSPEED = """
    import own_clock, deepspeed, time, torch
    deepspeed.init_distributed("gloo")
    model = torch.nn.Linear(64, 64)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    })
    for micro in range(10):
        engine.backward(engine(torch.randn(4, 64)).square().mean())
        time.sleep(0.01)
        engine.step()
        if micro % 2:
            own_clock.ended()
"""


@NIGHTLY
def test_deepspeed_ends_an_iteration_where_its_accumulation_ends(jobs: Jobs) -> None:
    """It compiles its operations at first, which takes two minutes."""
    pytest.importorskip("deepspeed")
    jobs.run(DEEPSPEED, *RUN, *torchrun(1), DS_ACCELERATOR="cpu").agree(1, 4)


TITAN = """
    import own_clock, time, torch
    from torchtitan.observability.structured_logger import step_state, structured_logging as log
    log.init_structured_logger(source="trainer", output_dir="out")
    for step in range(1, 7):
        step_state.set_step(step)
        own_clock.ended()
        with log.log_trace_span("fwd_bwd"):
            time.sleep(0.02)
"""
HANDLERS = "torchtitan.observability.structured_logger.jsonl_handler.register_jsonl_handler"


@NIGHTLY
def test_torchtitans_own_logger(jobs: Jobs) -> None:
    pytest.importorskip("torchtitan")
    handlers = f"{HANDLERS},joulecut.titan.register"
    jobs.run(TITAN, *PLAIN, TITAN_STRUCT_LOGGER_HANDLERS=handlers).agree(1, 5)


@NIGHTLY
@pytest.mark.parametrize("agent", ["present", "stopped", "killed", "absent"])
def test_hooks_take_less_than_a_quarter_of_a_millisecond(jobs: Jobs, agent: str) -> None:
    """Processor time, with operations; a full socket and no agent block nothing."""
    pytest.importorskip("torch")
    process = jobs.agent.process
    assert process is not None
    socket = {} if agent != "absent" else {"JOULECUT_SOCKET": "/nonexistent/jobs.sock"}
    if agent == "stopped":
        process.send_signal(signal.SIGSTOP)
    if agent == "killed":
        jobs.agent.kill()
    try:
        ran = jobs.run(HOOKS, *RUN, *PLAIN, **socket)
    finally:
        if agent == "stopped":
            process.send_signal(signal.SIGCONT)
        if agent == "killed":
            jobs.agent.start()
            jobs.listen()
    taken_ms, longest_ms = map(float, ran.said.split()[-2:])
    assert taken_ms <= 0.25
    assert longest_ms < 50.0, "of the processor, in one iteration"


HOOKS = """
    import os, time, own_clock
    from joulecut.recorder import recorder
    def iteration():
        for microbatch in range(16):
            for kind in ("forward", "backward"):
                recorder.end(kind, microbatch, recorder.begin(kind, microbatch))
        recorder.step()
    taken = []
    for _ in range(2000):
        begin = time.thread_time()
        iteration()
        taken.append(time.thread_time() - begin)
    print(1e3 * sum(taken) / len(taken), 1e3 * max(taken))
"""
