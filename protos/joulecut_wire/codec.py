"""Conversion of messages to protobuf and back.

Watts travel as integer milliwatts, as NVML gives them. Decoding raises BadInput for a message with
anything outside `joulecut_wire.ranges`, and for nothing else; narrower bounds are checked at the
use of a value, which refuses with a reason.
"""

from functools import lru_cache
from sys import intern

from joulecut_wire import messages as m
from joulecut_wire import ranges
from joulecut_wire.v1 import agent_pb2 as pb

_MW_PER_W = 1000.0


def _mw(watts: float | None) -> int | None:
    return None if watts is None else round(watts * _MW_PER_W)


def encode_node(node: m.NodeDescription) -> pb.DescribeResponse:
    return pb.DescribeResponse(
        node=node.node,
        agent_version=node.agent_version,
        boot_id=node.boot_id,
        epoch_seen=node.epoch_seen,
        ttl_max_s=node.ttl_max_s,
        gpus=[
            pb.Gpu(
                uuid=gpu.uuid,
                index=gpu.index,
                model=gpu.model,
                clocks_mhz=gpu.clocks_mhz,
                clock_min_mhz=gpu.clock_min_mhz,
                clock_max_mhz=gpu.clock_max_mhz,
                power_limit_default_mw=round(gpu.power_limit_default_w * _MW_PER_W),
                power_limit_min_mw=round(gpu.power_limit_min_w * _MW_PER_W),
                power_limit_max_mw=round(gpu.power_limit_max_w * _MW_PER_W),
                controllable=gpu.controllable,
                reason=gpu.reason,
                min_dwell_s=gpu.min_dwell_s,
                power_controllable=gpu.power_controllable,
                set_latency_p95_s=gpu.set_latency_p95_s,
                set_latency_spread_s=gpu.set_latency_spread_s,
                energy_scope=gpu.energy_scope,
            )
            for gpu in node.gpus
        ],
        stopped=node.stopped,
        roles=node.roles,
        program_steps_max=node.schedule_steps_max,
        keeps_power_limits=node.keeps_power_limits,
        timed_steps_max=node.timed_steps_max,
    )


def decode_node(msg: pb.DescribeResponse) -> m.NodeDescription:
    ranges.check(msg)
    return m.NodeDescription(
        node=msg.node,
        agent_version=msg.agent_version,
        boot_id=msg.boot_id,
        epoch_seen=msg.epoch_seen,
        ttl_max_s=msg.ttl_max_s,
        gpus=tuple(
            m.GpuDescription(
                uuid=gpu.uuid,
                index=gpu.index,
                model=gpu.model,
                clocks_mhz=_shared(tuple(gpu.clocks_mhz)),
                clock_min_mhz=gpu.clock_min_mhz,
                clock_max_mhz=gpu.clock_max_mhz,
                power_limit_default_w=gpu.power_limit_default_mw / _MW_PER_W,
                power_limit_min_w=gpu.power_limit_min_mw / _MW_PER_W,
                power_limit_max_w=gpu.power_limit_max_mw / _MW_PER_W,
                controllable=gpu.controllable,
                reason=gpu.reason,
                min_dwell_s=gpu.min_dwell_s,
                power_controllable=gpu.power_controllable,
                set_latency_p95_s=gpu.set_latency_p95_s,
                set_latency_spread_s=gpu.set_latency_spread_s,
                energy_scope=gpu.energy_scope,
            )
            for gpu in msg.gpus
        ),
        stopped=msg.stopped,
        roles=tuple(msg.roles),
        schedule_steps_max=msg.program_steps_max,
        keeps_power_limits=msg.keeps_power_limits,
        timed_steps_max=msg.timed_steps_max,
    )


@lru_cache(maxsize=64)  # models of card in one cluster
def _shared(clocks_mhz: tuple[int, ...]) -> tuple[int, ...]:
    """One list of clocks for all GPUs of a model."""
    return clocks_mhz


def _encode_gpu(gpu: m.GpuSnapshot) -> pb.GpuSnapshot:
    lease = gpu.lease
    return pb.GpuSnapshot(
        uuid=gpu.uuid,
        power_average_mw=_mw(gpu.power_average_w),
        power_instant_mw=_mw(gpu.power_instant_w),
        energy_j=gpu.energy_j,
        clock_sm_mhz=gpu.clock_sm_mhz,
        clock_memory_mhz=gpu.clock_memory_mhz,
        temperature_celsius=gpu.temperature_celsius,
        utilization_gpu_ratio=gpu.utilization_gpu_ratio,
        utilization_memory_ratio=gpu.utilization_memory_ratio,
        memory_used_bytes=gpu.memory_used_bytes,
        power_limit_enforced_mw=_mw(gpu.power_limit_enforced_w),
        event_reasons=gpu.event_reasons,
        lease=None
        if lease is None
        else pb.Lease(
            job=lease.job,
            epoch=lease.epoch,
            generation=lease.generation,
            clock_min_mhz=lease.clock_min_mhz,
            clock_max_mhz=lease.clock_max_mhz,
            expires_in_s=lease.expires_in_s,
            power_limit_mw=_mw(lease.power_limit_w),
            clock_lowest_mhz=lease.clock_lowest_mhz,
        ),
        drift=gpu.drift,
        stands_back_s=gpu.backoff_s,
        slow_reason=gpu.slow_reason,
        power_limit_kept_mw=round(gpu.power_limit_kept_w * _MW_PER_W),
        energy_integrated_j=gpu.energy_integrated_j,
    )


def _limit_w(msg: pb.Lease | pb.Setting) -> float | None:
    return msg.power_limit_mw / _MW_PER_W if msg.HasField("power_limit_mw") else None


def _decode_gpu(msg: pb.GpuSnapshot) -> m.GpuSnapshot:
    # Thousands a second are decoded, so each field is looked at without a call of ours.
    has, lease = msg.HasField, msg.lease
    return m.GpuSnapshot(
        uuid=intern(msg.uuid),
        power_average_w=msg.power_average_mw / _MW_PER_W if has("power_average_mw") else None,
        power_instant_w=msg.power_instant_mw / _MW_PER_W if has("power_instant_mw") else None,
        energy_j=msg.energy_j if has("energy_j") else None,
        clock_sm_mhz=msg.clock_sm_mhz if has("clock_sm_mhz") else None,
        clock_memory_mhz=msg.clock_memory_mhz if has("clock_memory_mhz") else None,
        temperature_celsius=msg.temperature_celsius if has("temperature_celsius") else None,
        utilization_gpu_ratio=msg.utilization_gpu_ratio if has("utilization_gpu_ratio") else None,
        utilization_memory_ratio=msg.utilization_memory_ratio
        if has("utilization_memory_ratio")
        else None,
        memory_used_bytes=msg.memory_used_bytes if has("memory_used_bytes") else None,
        power_limit_enforced_w=msg.power_limit_enforced_mw / _MW_PER_W
        if has("power_limit_enforced_mw")
        else None,
        event_reasons=tuple(msg.event_reasons),
        lease=m.Lease(
            job=lease.job,
            epoch=lease.epoch,
            generation=lease.generation,
            clock_min_mhz=lease.clock_min_mhz,
            clock_max_mhz=lease.clock_max_mhz,
            expires_in_s=lease.expires_in_s,
            power_limit_w=_limit_w(lease),
            clock_lowest_mhz=lease.clock_lowest_mhz,
        )
        if msg.HasField("lease")
        else None,
        drift=msg.drift,
        backoff_s=msg.stands_back_s,
        slow_reason=msg.slow_reason,
        power_limit_kept_w=msg.power_limit_kept_mw / _MW_PER_W,
        energy_integrated_j=msg.energy_integrated_j if has("energy_integrated_j") else None,
    )


def _encode_report(report: m.IterationReport) -> pb.IterationReport:
    shape = report.shape
    return pb.IterationReport(
        job=report.job,
        uuid=report.uuid,
        stage=report.stage,
        iteration=report.iteration,
        duration_s=report.duration_s,
        operations=[
            pb.OperationReport(
                kind=op.kind, count=op.count, busy_s=op.busy_s, durations_s=op.durations_s
            )
            for op in report.operations
        ],
        peer_iteration_time_s=report.peer_iteration_time_s,
        replica=report.replica,
        source=report.source,
        age_s=report.age_s,
        shape=pb.PipelineShape(
            schedule=shape.schedule,
            stages=shape.stages,
            microbatches=shape.microbatches,
            tensor_parallel=shape.tensor_parallel,
            data_parallel=shape.data_parallel,
        )
        if shape
        else None,
        order=report.order,
    )


def _decode_report(msg: pb.IterationReport) -> m.IterationReport:
    shape = msg.shape
    return m.IterationReport(
        job=intern(msg.job),
        uuid=intern(msg.uuid),
        stage=msg.stage,
        iteration=msg.iteration,
        duration_s=msg.duration_s,
        operations=tuple(
            m.OperationReport(intern(op.kind), op.count, op.busy_s, tuple(op.durations_s))
            for op in msg.operations
        ),
        peer_iteration_time_s=msg.peer_iteration_time_s
        if msg.HasField("peer_iteration_time_s")
        else None,
        replica=msg.replica if msg.HasField("replica") else None,
        source=msg.source,
        age_s=msg.age_s,
        shape=m.PipelineShape(
            schedule=shape.schedule,
            stages=shape.stages,
            microbatches=shape.microbatches,
            tensor_parallel=shape.tensor_parallel,
            data_parallel=shape.data_parallel,
        )
        if msg.HasField("shape")
        else None,
        order=msg.order,
    )


def encode_tick(tick: m.WatchTick) -> pb.WatchResponse:
    return pb.WatchResponse(
        sequence=tick.sequence,
        age_s=tick.age_s,
        gpus=[_encode_gpu(gpu) for gpu in tick.gpus],
        reports=[_encode_report(report) for report in tick.reports],
        reports_dropped=tick.reports_dropped,
        allocations=[
            pb.Allocation(
                uuid=one.uuid,
                job=one.job,
                namespace=one.namespace,
                pod=one.pod,
                source=one.source,
                labels=one.labels,
            )
            for one in tick.allocations
        ],
        stopped=tick.stopped,
        timings=[
            pb.IterationTiming(
                job=one.job,
                uuid=one.uuid,
                source=one.source,
                iteration_time_s=one.iteration_time_s,
                start_jitter_s=one.start_jitter_s,
                starts_per_minute=one.starts_per_minute,
                missed_ratio=one.missed_ratio,
                change_error_s=one.change_error_s,
                marked=one.marked,
            )
            for one in tick.timings
        ],
        faults=[
            pb.ReportFault(
                job=one.job,
                uuids=one.uuids,
                source=one.source,
                text=one.text,
                count=one.count,
                age_s=one.age_s,
            )
            for one in tick.faults
        ],
    )


def decode_tick(msg: pb.WatchResponse) -> m.WatchTick:
    ranges.check(msg)
    return m.WatchTick(
        sequence=msg.sequence,
        age_s=msg.age_s,
        gpus=tuple(_decode_gpu(gpu) for gpu in msg.gpus),
        reports=tuple(_decode_report(report) for report in msg.reports),
        reports_dropped=msg.reports_dropped,
        allocations=tuple(
            m.Allocation(
                uuid=one.uuid,
                job=one.job,
                namespace=one.namespace,
                pod=one.pod,
                source=one.source,
                labels=dict(one.labels),
            )
            for one in msg.allocations
        ),
        stopped=msg.stopped,
        timings=tuple(
            m.IterationTiming(
                job=one.job,
                uuid=one.uuid,
                source=one.source,
                iteration_time_s=one.iteration_time_s,
                start_jitter_s=one.start_jitter_s,
                starts_per_minute=one.starts_per_minute,
                missed_ratio=one.missed_ratio,
                change_error_s=one.change_error_s,
                marked=one.marked,
            )
            for one in msg.timings
        ),
        faults=tuple(
            m.ReportFault(
                job=one.job,
                uuids=tuple(one.uuids),
                source=one.source,
                text=one.text,
                count=one.count,
                age_s=one.age_s,
            )
            for one in msg.faults
        ),
    )


def encode_command(command: m.Command) -> pb.ApplyRequest:
    return pb.ApplyRequest(
        epoch=command.epoch,
        job=command.job,
        generation=command.generation,
        ttl_s=command.ttl_s,
        settings=[
            pb.Setting(
                uuid=setting.uuid,
                clock_min_mhz=setting.clock_min_mhz,
                clock_max_mhz=setting.clock_max_mhz,
                power_limit_mw=_mw(setting.power_limit_w),
                program=[
                    pb.ProgramStep(
                        kind=step.kind,
                        microbatch=step.microbatch,
                        at_end=step.at_end,
                        clock_max_mhz=step.clock_max_mhz,
                    )
                    for step in setting.clock_schedule
                ],
                shortest_step_s=setting.shortest_step_s,
                keep_power_limit=setting.keep_power_limit,
                timed_steps=[
                    pb.TimedStep(offset_s=step.offset_s, clock_max_mhz=step.clock_max_mhz)
                    for step in setting.timed_steps
                ],
                iteration_time_s=setting.iteration_time_s,
            )
            for setting in command.settings
        ],
        reason=command.reason,
    )


def decode_command(msg: pb.ApplyRequest) -> m.Command:
    ranges.check(msg)
    return m.Command(
        epoch=msg.epoch,
        job=msg.job,
        generation=msg.generation,
        ttl_s=msg.ttl_s,
        settings=tuple(
            m.Setting(
                uuid=setting.uuid,
                clock_min_mhz=setting.clock_min_mhz,
                clock_max_mhz=setting.clock_max_mhz,
                power_limit_w=_limit_w(setting),
                clock_schedule=tuple(
                    m.ScheduleStep(
                        step.kind,
                        step.clock_max_mhz,
                        step.microbatch if step.HasField("microbatch") else None,
                        step.at_end,
                    )
                    for step in setting.program
                ),
                shortest_step_s=setting.shortest_step_s,
                keep_power_limit=setting.keep_power_limit,
                timed_steps=tuple(
                    m.TimedStep(step.offset_s, step.clock_max_mhz) for step in setting.timed_steps
                ),
                iteration_time_s=setting.iteration_time_s,
            )
            for setting in msg.settings
        ),
        reason=msg.reason,
    )


def encode_results(results: tuple[m.Result, ...]) -> list[pb.Result]:
    return [pb.Result(uuid=r.uuid, accepted=r.accepted, reason=r.reason) for r in results]


def decode_results(
    msg: pb.ApplyResponse | pb.RenewResponse | pb.ClearResponse,
) -> tuple[m.Result, ...]:
    ranges.check(msg)
    return tuple(m.Result(uuid=r.uuid, accepted=r.accepted, reason=r.reason) for r in msg.results)
