"""The agent's gRPC and HTTP face, as a stranger's controller or browser meets it."""

import contextlib
import math
import signal
import socket
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from running_agent import LATE, PATIENCE_S, RunningAgent, eventually

from joulecut import Reporter
from joulecut_agent import __version__
from joulecut_agent.export import http_server
from joulecut_wire import codec
from joulecut_wire.messages import WatchTick
from joulecut_wire.v1 import agent_pb2 as pb
from joulecut_wire.v1 import agent_pb2_grpc


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningAgent]:
    with RunningAgent(cards=2) as agent:
        yield agent.start()


@pytest.fixture
def node(shared: RunningAgent) -> Iterator[RunningAgent]:
    yield shared
    shared.clear(job="", epoch=shared.describe().epoch_seen)


@pytest.fixture
def generation(request: pytest.FixtureRequest) -> int:
    """The first of ten numbers of this test's own, above those of every test before it."""
    names = [item.name for item in request.session.items]
    return 10 * (1 + names.index(request.node.name))


def test_describe_returns_what_may_be_set(node: RunningAgent) -> None:
    about = node.describe()
    assert (about.node, about.agent_version, about.ttl_max_s) == ("n1", __version__, 60.0)
    assert len(about.boot_id) == 36
    assert [gpu.uuid for gpu in about.gpus] == list(node.gpus.uuids)
    for gpu in about.gpus:
        assert gpu.controllable
        assert not gpu.reason
        assert list(gpu.clocks_mhz) == sorted(gpu.clocks_mhz)
        assert gpu.power_limit_default_w > 0


def _code(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code().name, caught.value.details()


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (pb.ApplyRequest(epoch=1, generation=1, ttl_s=9), "job ''"),
        (pb.ApplyRequest(job="a\nb", ttl_s=9), "printable"),
        (pb.ApplyRequest(job="é" * 127, ttl_s=9), "253"),
        (pb.ApplyRequest(job="demo", ttl_s=9), "0 settings; allowed: 1 to 16"),
        (
            pb.ApplyRequest(job="demo", settings=[pb.Setting(uuid=str(n)) for n in range(17)]),
            "17 settings",
        ),
        (
            pb.ApplyRequest(job="demo", settings=[pb.Setting(uuid="a"), pb.Setting(uuid="a")]),
            "named twice",
        ),
    ],
)  # fmt: skip
def test_a_request_without_sense_is_invalid(
    node: RunningAgent, request_: pb.ApplyRequest, sentence: str
) -> None:
    code, details = _code(lambda: node.stub.Apply(request_, timeout=PATIENCE_S))
    assert code == "INVALID_ARGUMENT"
    assert sentence in details
    assert node.locked() == {}


def test_a_refusal_is_a_value_with_its_reason(node: RunningAgent, generation: int) -> None:
    for ttl_s in (math.nan, math.inf, 0.0, -1.0, 1e9):
        results = node.obey({0: 1005}, ttl_s=ttl_s, generation=generation)
        assert [result.accepted for result in results] == [False]
        assert "ttl" in results[0].reason
    huge = node.obey({0: 2**32 - 1}, generation=generation)
    assert not huge[0].accepted
    unknown = pb.ApplyRequest(
        epoch=1, job="demo", generation=generation, ttl_s=9,
        settings=[
            pb.Setting(uuid=node.gpus.uuid(0), clock_max_mhz=1005),
            pb.Setting(uuid="GPU-elsewhere", clock_max_mhz=1005),
        ],
    )  # fmt: skip
    results = codec.decode_results(node.stub.Apply(unknown, timeout=PATIENCE_S))
    assert [result.accepted for result in results] == [False, False]
    assert "GPU-elsewhere" in results[0].reason
    assert node.locked() == {}


def test_clear_without_an_epoch_is_older_than_any(node: RunningAgent, generation: int) -> None:
    node.obey({0: 1005}, generation=generation)
    for job in ("demo", ""):
        (refused,) = node.clear(job=job, epoch=0)
        assert (refused.accepted, refused.reason) == (False, "epoch 0 is older than 1")
    assert node.locked() == {0: 1005}


def _whole(tick: WatchTick) -> WatchTick | None:
    """None where a GPU is missing, whose reading was late on a busy machine."""
    return tick if len(tick.gpus) == 2 else None


def test_watch_shows_gpus_leases_and_reports(node: RunningAgent, generation: int) -> None:
    assert node.obey({1: 1005}, generation=generation, ttl_s=30.0)[0].accepted
    call = node.stub.Watch(pb.WatchRequest(interval_s=0.1), timeout=PATIENCE_S)
    first = eventually("both GPUs", lambda: _whole(codec.decode_tick(next(call))))
    lease = first.gpus[1].lease
    assert (lease.job, lease.generation, lease.clock_max_mhz) == ("demo", generation, 1005)
    assert 0 < lease.expires_in_s <= 30.0
    assert first.gpus[0].lease is None
    eventually("a fresh reading", lambda: 0 <= codec.decode_tick(next(call)).age_s < 1.0)
    reporter = Reporter("demo", node.gpus.uuid(1), 3, node.ready["socket"])
    assert reporter.iteration(7, 0.5, {"forward": (4, 0.1)}, peer_iteration_time_s=0.6)
    reporter.close()
    for tick in map(codec.decode_tick, call):
        assert tick.sequence >= first.sequence
        if tick.reports:
            break
    call.cancel()
    assert [(r.stage, r.iteration, r.peer_iteration_time_s) for r in tick.reports] == [(3, 7, 0.6)]
    assert tick.reports_dropped == 0


def test_watchers_are_bounded_and_their_places_come_free(node: RunningAgent) -> None:
    code, details = _code(
        lambda: next(node.stub.Watch(pb.WatchRequest(interval_s=math.nan), timeout=PATIENCE_S))
    )
    assert (code, "interval_s" in details) == ("INVALID_ARGUMENT", True)

    def seated() -> Any:
        """A watcher; none where one that has left still holds his place."""
        call = node.stub.Watch(pb.WatchRequest(interval_s=60.0))
        try:
            next(call)
        except grpc.RpcError:
            return None
        return call

    calls = [eventually("a place", seated) for _ in range(8)]
    code, details = _code(lambda: next(node.stub.Watch(pb.WatchRequest(interval_s=1.0))))
    assert (code, details) == ("RESOURCE_EXHAUSTED", "8 watchers already")
    assert node.describe().gpus, "other calls still have room"
    for call in calls:
        call.cancel()

    def free() -> bool:
        call = node.stub.Watch(pb.WatchRequest(interval_s=1.0), timeout=PATIENCE_S)
        try:
            return bool(next(call).gpus)
        except grpc.RpcError:
            return False
        finally:
            call.cancel()

    eventually("a free place", free)


FREEZE = """
import sys, time
import grpc
from joulecut_wire.v1 import agent_pb2 as pb, agent_pb2_grpc
channel = grpc.insecure_channel(sys.argv[1])
stub = agent_pb2_grpc.AgentServiceStub(channel)
seated = []
while len(seated) < 8:  # those who have left may still hold a place
    try:
        call = stub.Watch(pb.WatchRequest(interval_s=0.1))
        next(call)
        seated.append(call)
    except grpc.RpcError:
        time.sleep(0.05)
print("watching", flush=True)
time.sleep(600)
"""


def test_watchers_that_froze_lose_their_places(node: RunningAgent) -> None:
    """The kernel takes their messages until its buffer is full."""
    argv = [sys.executable, "-c", FREEZE, node.address]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as frozen:
        try:
            assert frozen.stdout.readline() == "watching\n"
            frozen.send_signal(signal.SIGSTOP)

            def free() -> bool:
                try:
                    return bool(node.watch().gpus)
                except grpc.RpcError:
                    return False

            assert not free()
            eventually("a free place", free, patience_s=2 * PATIENCE_S)
        finally:
            frozen.kill()


def test_local_users_without_a_certificate_leave_room_for_the_controller(
    node: RunningAgent,
) -> None:
    with grpc.insecure_channel(node.ready["grpc"]) as channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        calls = []

        def refused() -> bool:
            call = stub.Watch(pb.WatchRequest(interval_s=60.0))
            calls.append(call)
            try:
                return not next(call)
            except grpc.RpcError as error:
                return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

        eventually("all of theirs are taken", refused)
        for stream in (stub.ReadSamples(pb.ReadSamplesRequest()), stub.Watch(pb.WatchRequest())):
            with pytest.raises(grpc.RpcError, match="4 streams without a certificate"):
                next(stream)
        eventually("a place", lambda: _watches(node))
        for call in calls:
            call.cancel()


def _watches(node: RunningAgent) -> bool:
    """Whether there is room; watchers of an earlier test may still leave."""
    try:
        return bool(node.watch().gpus)
    except grpc.RpcError:
        return False


def _limit(node: RunningAgent, limit_mw: int, generation: int, clock_mhz: int = 0) -> Any:
    setting = pb.Setting(uuid=node.gpus.uuid(0), clock_max_mhz=clock_mhz, power_limit_mw=limit_mw)
    request = pb.ApplyRequest(
        epoch=1, job="demo", generation=generation, ttl_s=30.0, settings=[setting]
    )

    def in_time() -> Any:
        (result,) = node.stub.Apply(request, timeout=PATIENCE_S).results
        return None if LATE.search(result.reason) else result

    return eventually("an answer in time", in_time)


def test_a_power_limit_is_set_shown_and_restored(node: RunningAgent, generation: int) -> None:
    about = node.describe().gpus[0]
    assert about.power_controllable
    assert _limit(node, 300_000, generation).accepted
    assert node.gpus.card(0).power_limit_mw == 300_000
    assert node.locked() == {}, "clocks of 0 are left alone"
    lease = eventually("both GPUs", lambda: _whole(node.watch())).gpus[0].lease
    assert (lease.clock_max_mhz, lease.power_limit_w) == (0, 300.0)
    series = f'joulecut_gpu_power_limit_watts{{kind="requested",uuid="{about.uuid}"}} 300.0'
    eventually("the series", lambda: series in node.metrics())
    assert "=300W accepted" in node.log
    assert _limit(node, 250_000, generation + 1, clock_mhz=1005).accepted
    assert node.locked() == {0: 1005}
    assert node.clear()[0].accepted
    assert node.locked() == {}
    assert node.gpus.card(0).power_limit_mw == round(about.power_limit_default_w * 1000)


def test_grpc_health_serves(node: RunningAgent) -> None:
    assert node.channel is not None
    health = health_pb2_grpc.HealthStub(node.channel)
    for service in ("", "joulecut_wire.v1.AgentService"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_http_serves_two_paths_and_openmetrics(node: RunningAgent) -> None:
    assert node.metrics("/healthz") == "ok\n"
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        node.metrics("/")
    caught.value.close()
    host, _, port = node.ready["metrics"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as line:
        line.sendall(
            b"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n"
        )
        text = b""
        while more := line.recv(65_536):
            text += more
    assert text.rstrip().endswith(b"# EOF")
    assert b"_created" not in text


def test_commands_are_counted_per_setting(node: RunningAgent, generation: int) -> None:
    def count(op: str, result: str) -> float:
        series = f'joulecut_control_commands_total{{op="{op}",result="{result}"}}'
        [line] = [line for line in node.metrics().splitlines() if line.startswith(series)]
        return float(line.split()[1])

    node.obey({0: 1005, 1: 1005}, generation=generation)
    accepted, refused = count("apply", "accepted"), count("apply", "refused")
    results = node.apply({0: 1005, 1: 1005}, generation=generation)
    results += node.apply({0: 1005, 1: 1001}, generation=generation + 1)
    good = sum(result.accepted for result in results)
    assert (len(results), good) == (4, 2), "the first had nothing to write"
    assert (count("apply", "accepted"), count("apply", "refused")) == (accepted + 2, refused + 2)


def test_a_taken_address_is_one_line(node: RunningAgent) -> None:
    for which in ("grpc", "metrics"):
        listen = {"metrics": "127.0.0.1:0", "grpc": "127.0.0.1:0", "socket": "jobs.sock"}
        with RunningAgent(cards=2, listen={**listen, which: node.ready[which]}) as second:
            second.process = second._spawn("run")
            assert second.process.wait(timeout=PATIENCE_S) == 1
            [line] = [line for line in second.log.splitlines() if "listen" in line]
            assert node.ready[which] in line
            words = ("agent: ", "keeper: ", "joulecut-agent: ")
            assert all(line.startswith(words) for line in second.log.splitlines()), second.log
            assert "Traceback" not in second.log


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost"])
def test_half_open_connections_cost_no_probe_and_no_scrape(node: RunningAgent, sent: bytes) -> None:
    host, _, port = node.ready["metrics"].rpartition(":")
    with contextlib.ExitStack() as lines:
        for _ in range(5):
            for _ in range(10):
                line = lines.enter_context(socket.create_connection((host, int(port))))
                with contextlib.suppress(OSError):
                    line.send(sent)
            begun_s = time.monotonic()
            assert "joulecut_build_info" in node.metrics()
            assert node.metrics("/healthz").startswith("ok")
            assert time.monotonic() - begun_s < http_server.REQUEST_WAIT_S, "none waits for them"


def test_a_request_that_never_ends_is_ended(node: RunningAgent) -> None:
    host, _, port = node.ready["metrics"].rpartition(":")
    with socket.create_connection((host, int(port))) as line:
        begun_s = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - begun_s < PATIENCE_S:
                line.send(b"G")
                time.sleep(0.2)
        assert time.monotonic() - begun_s < PATIENCE_S


def test_the_connections_of_one_address_are_bounded() -> None:
    with http_server._Http(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        ends = [socket.socketpair() for _ in range(http_server.CONNECTIONS_MAX + 2)]
        for port, (_, end) in enumerate(ends[:-2]):
            server.process_request(end, ("10.0.0.1", port))
        assert len(server._connections) == http_server.PEER_MAX
        server.process_request(ends[-2][1], ("10.0.0.2", 1))
        server.process_request(ends[-1][1], ("10.0.0.1", 99))
        assert [a for a in server._connections if a[0] == "10.0.0.2"] == [("10.0.0.2", 1)]
        for pair in ends:
            for end in pair:
                end.close()


def test_two_agents_do_not_share_a_folder(node: RunningAgent) -> None:
    with RunningAgent(cards=2, state_dir=str(node.state_dir)) as second:
        second.process = second._spawn("run")
        assert second.process.wait(timeout=PATIENCE_S) == 1
        assert second.log == f"joulecut-agent: another agent holds {node.state_dir}/agent.lock\n"
    eventually("the first goes on", (node.state_dir / "owners").exists)
