"""Any sequence of bytes on the keeper's socket, then silence: no GPU stays locked.

The keeper is a real process on the fake driver, and the judge is the driver's own log: nothing
that the keeper says counts. GPUs are under load, and some carry out a lock seconds after they have
acknowledged it.
"""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from driven_agent import agent_on, fake_driver
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from running_agent import RunningAgent, eventually

from fixture import FakeNvml
from joulecut_agent.keeper import protocol as wire
from joulecut_agent.keeper.requests import (
    Apply,
    Clear,
    ClockLimits,
    GpuSetting,
    Hold,
    Release,
    Renew,
    ResetEpoch,
    Resume,
    Status,
    Step,
    Yield,
)

GPUS = 4
UUIDS = tuple(f"GPU-fa4e0000-0000-4000-8000-{n:012}" for n in range(GPUS))
TTL_S_MAX = 1.0
GRACE_S, LATE_S = 2.0, 17.0  # docs/safety.md
STALL_S = 3.0  # a machine that runs the other tests as well
LOCK = "nvmlDeviceSetGpuLockedClocks"
WINDOW_S = 0.3  # of a release; inside one no device is open

clocks_mhz = st.sampled_from([345, 510, 705, 900, 1005, 1200, 1305])
numbers = st.integers(0, 3)
jobs = st.sampled_from(["blue", "red"])
uuids = st.sampled_from([*UUIDS, "GPU-of-another-node"])
some = st.lists(uuids, max_size=GPUS, unique=True).map(tuple)
ttls_s = st.sampled_from([0.2, TTL_S_MAX, TTL_S_MAX, 5.0, -1.0, float("nan"), float("inf")])
limits = st.builds(ClockLimits, st.sampled_from([0, 210, 345]), clocks_mhz, st.just(0))
schedules = st.lists(clocks_mhz, max_size=3).map(tuple)
gpu_settings = st.builds(GpuSetting, limits, schedules)
requests = st.one_of(
    st.builds(Apply, numbers, jobs, numbers, ttls_s, st.dictionaries(uuids, gpu_settings)),
    st.builds(Apply, st.just(3), jobs, st.integers(4, 9), st.just(TTL_S_MAX),
              st.dictionaries(st.sampled_from(UUIDS), gpu_settings, min_size=1)),
    st.builds(Yield, uuids, st.just(0), st.just(0)),
    st.builds(Yield, uuids, numbers, numbers),
    st.builds(Renew, numbers, jobs, numbers, ttls_s),
    st.builds(Step, jobs, numbers, uuids, clocks_mhz, st.floats(0, 2)),
    st.builds(Hold, some, st.floats(0, 2)),
    st.builds(Clear, numbers, st.sampled_from(["", "blue"]), some),
    st.builds(Release, st.sampled_from([WINDOW_S, -1.0, 1e9])),
    st.sampled_from([Resume(), ResetEpoch(), Status(UUIDS)]),
)  # fmt: skip
packets = st.builds(wire.encode_request, st.integers(0, 9), requests)
broken = st.builds(
    lambda raw, place, bit: raw[:place] + bytes([raw[place] ^ 1 << bit]) + raw[place + 1 :],
    packets, st.integers(0, 200), st.integers(0, 7),
)  # fmt: skip
said = st.one_of(packets, packets, packets, broken, st.binary(max_size=300))
pauses_s = st.sampled_from([0.0, 0.0, 0.05, 0.2, 0.5])
sequences = st.lists(st.tuples(said, pauses_s), min_size=15, max_size=40)
late_locks = st.lists(  # GPU, seconds, and locks before it
    st.tuples(st.integers(0, GPUS - 1), st.floats(1.0, 6.0), st.integers(0, 1)), min_size=3,
    max_size=6,
)  # fmt: skip
# A clock on every GPU, carried out after its lease: what a drawn sequence may lack.
EVERY_LOCK = Apply(
    1, "blue", 1, TTL_S_MAX, {uuid: GpuSetting(ClockLimits(0, 900, 0), ()) for uuid in UUIDS}
)
EVERY_LATE = [(gpu, 4.0, 0) for gpu in range(GPUS)]
# The fake driver carries out what is late at the next call about a GPU.
OBSERVER = """
import pynvml, time
pynvml.nvmlInit()
while True:
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    time.sleep(0.05)
"""


@pytest.fixture
def driver() -> Iterator[FakeNvml]:
    with fake_driver(GPUS, load=dict.fromkeys(range(GPUS), 0.5)) as fake:
        assert fake.uuids == UUIDS
        yield fake


@pytest.fixture
def node(driver: FakeNvml) -> Iterator[RunningAgent]:
    with agent_on(driver, lease={"ttl_s_max": TTL_S_MAX}) as made:
        made.start_keeper()
        observer = subprocess.Popen([sys.executable, "-c", OBSERVER], env=driver.environment())
        yield made
        observer.kill()
        observer.wait()


def _say(node: RunningAgent, sequence: list[tuple[bytes, float]]) -> None:
    """Sends packet after packet, and connects again when the keeper has dropped the line."""
    lines: list[socket.socket] = []
    with contextlib.ExitStack() as opened:
        for raw, pause_s in [(wire.encode_request(1, ResetEpoch()), 0.0), *sequence]:
            for _ in range(2):
                if not lines:
                    line = opened.enter_context(
                        closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                    )
                    line.settimeout(20.0)
                    line.connect(str(node.state_dir / "keeper.sock"))
                    lines.append(line)
                with contextlib.suppress(OSError):
                    lines[0].send(raw)
                    if raw and lines[0].recv(wire.REPLY_BYTES + 1):
                        break
                lines.pop().close()
            time.sleep(pause_s)


def _judge(driver: FakeNvml, node: RunningAgent, bound_s: float) -> None:
    """From the bound on the driver holds no lock, and every write was the keeper's."""
    eventually("free", lambda: not any(driver.locks()), bound_s + STALL_S)
    for write in driver.writes():
        assert "keeper" in write.command.split() or not write.command, write
    assert node.keepers[-1].poll() is None, "and it lives"


def _property(driver: FakeNvml, node: RunningAgent, examples: int, *, late: bool) -> None:
    @settings(max_examples=examples, deadline=None, phases=(Phase.explicit, Phase.generate),
              suppress_health_check=tuple(HealthCheck))  # fmt: skip
    @given(sequences, late_locks if late else st.just([]))
    @example([(wire.encode_request(2, EVERY_LOCK), 0.0)], EVERY_LATE if late else [])
    def check(sequence: list[tuple[bytes, float]], delays: list[tuple[int, float, int]]) -> None:
        driver.clear_errors()
        for gpu, late_s, skip in delays:
            driver.set_error(LOCK, 0, gpu=gpu, skip=skip, count=1, late_s=late_s)
        _say(node, sequence)
        driver.clear_errors()
        # What is late has come then, or never will.
        time.sleep(max((late_s for _, late_s, _ in delays), default=0.0))
        _judge(driver, node, LATE_S if delays else TTL_S_MAX + GRACE_S)

    check()


@pytest.mark.first
def test_any_bytes_then_silence_leave_no_gpu_locked(driver: FakeNvml, node: RunningAgent) -> None:
    _property(driver, node, 6, late=False)


@pytest.mark.long
def test_nor_do_they_where_the_driver_is_late(driver: FakeNvml, node: RunningAgent) -> None:
    _property(driver, node, 12, late=True)
    came_late = [w for w in driver.writes() if w.function == LOCK and w.done and not w.command]
    assert len(came_late) >= len(EVERY_LATE), "otherwise it shows nothing"
