"""Spans and metrics of the OpenTelemetry SDK, by gRPC and HTTP, as protobuf and JSON, plain and
gzip, reach the agent.

The exporters are the real ones, with their own retries and compression; skipped where they are not
installed (`make producers`).
"""

from collections.abc import Iterator

import pytest
from driven_agent import agent_on, fake_driver
from held_port import held_port
from real_jobs import Jobs

from joulecut_wire.messages import PipelineShape

SCRIPT = """
    import own_clock, os, time
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    if os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    elif os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "http/json":
        from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.exporter.otlp.json.http.metric_exporter import OTLPMetricExporter
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    about = Resource.create({
        "service.name": "gpt", "dl.rank": 0, "dl.world_size": 2, "dl.pipeline_parallel.size": 2,
        "nv.gpu.uuid": own_clock.uuid, "process.pid": os.getpid(),
    })
    traces = TracerProvider(resource=about)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    metrics = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource=about)
    loss = metrics.get_meter("megatron").create_counter("iterations")
    tracer = traces.get_tracer("megatron")
    own_clock.ended()
    for step in range(1, 6):
        with tracer.start_as_current_span("megatron.train_step") as span:
            span.set_attribute("megatron.iteration", step)
            for kind in 3 * ("forward",) + 3 * ("backward",):
                with tracer.start_as_current_span(f"megatron.microbatch.{kind}"):
                    time.sleep(0.005)
        loss.add(1)
        own_clock.ended()
    assert traces.force_flush() and metrics.force_flush()
    traces.shutdown()
"""


@pytest.fixture(scope="module")
def jobs() -> Iterator[tuple[Jobs, dict[str, str]]]:
    with held_port() as grpc_port, held_port() as http_port, fake_driver(2) as driver:
        ports = {"grpc": f"127.0.0.1:{grpc_port}", "http/protobuf": f"127.0.0.1:{http_port}"}
        ports["http/json"] = ports["http/protobuf"]
        listen = {"metrics": "127.0.0.1:0", "grpc": "127.0.0.1:0", "socket": "jobs.sock"}
        listen |= {"otlp_grpc": ports["grpc"], "otlp_http": ports["http/protobuf"]}
        with agent_on(driver, listen=listen) as agent:
            yield Jobs(agent.start(), driver.uuids), ports


@pytest.mark.long
@pytest.mark.parametrize(
    "compression", [{}, {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}], ids=["plain", "gzip"]
)
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf", "http/json"])
def test_the_sdks_exporters(
    jobs: tuple[Jobs, dict[str, str]], protocol: str, compression: dict[str, str]
) -> None:
    exporter = "proto" if protocol != "http/json" else "json"
    pytest.importorskip(f"opentelemetry.exporter.otlp.{exporter}.http")
    running, ports = jobs
    ran = running.run(
        SCRIPT, "python", OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{ports[protocol]}",
        OTEL_EXPORTER_OTLP_INSECURE="true", **compression,
    ).agree(1, 5)  # fmt: skip
    assert "rror" not in ran.said, "metrics are answered too"
    for report in ran.all():
        assert (report.job, report.source, report.stage) == ("gpt", "otlp", 0)
        assert report.shape == PipelineShape("gpipe", 2, 3)
