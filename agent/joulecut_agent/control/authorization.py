"""Authorisation of every gRPC call, and the audit line of every command.

An interceptor, so that no path through the service can skip either. An unknown method is refused.
A request that does not parse is refused here with a reason: gRPC would report an internal error.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from joulecut_agent.control.access import (
    APPLY,
    CLEAR,
    LOOPBACK,
    OBSERVE,
    RELEASE,
    Caller,
    Rules,
    caller,
)
from joulecut_agent.control.audit_log import AuditLog
from joulecut_agent.keeper.client import MW_PER_W

SERVICE = "joulecut_wire.v1.AgentService"
HEALTH = "grpc.health.v1.Health"
ROLE_OF = {
    f"/{SERVICE}/Describe": OBSERVE,
    f"/{SERVICE}/Watch": OBSERVE,
    f"/{SERVICE}/ReadSamples": OBSERVE,
    f"/{SERVICE}/Clear": CLEAR,
    f"/{SERVICE}/Release": RELEASE,
    f"/{SERVICE}/Resume": RELEASE,
    f"/{SERVICE}/Apply": APPLY,
    f"/{SERVICE}/Renew": APPLY,
    f"/{HEALTH}/Check": OBSERVE,
    f"/{HEALTH}/Watch": OBSERVE,
}
STREAMS = (f"/{SERVICE}/Watch", f"/{SERVICE}/ReadSamples")
COMMANDS = (CLEAR, RELEASE, APPLY)
# Streams of local users without a certificate, of the agent's twelve: the others stay for callers
# with a certificate or on the socket.
LOOPBACK_STREAMS_MAX = 4
Behaviour = Callable[[Any, grpc.ServicerContext], Any]


@dataclass(eq=False)
class AuthorizationInterceptor(grpc.ServerInterceptor):
    """Checks roles, adds the caller's own to `Describe`, and writes the audit log.

    `denied` is called with a missing role, `malformed` with the call of a broken request.
    `epoch_seen` returns the largest epoch of this node. A caller without the role apply must not
    raise it: that would shut out the controller for ever.
    """

    rules: Rules
    audit_log: AuditLog
    denied: Callable[[str], None]
    epoch_seen: Callable[[], int]
    malformed: Callable[[str], None]

    def __post_init__(self) -> None:
        self._loopback_streams = threading.BoundedSemaphore(LOOPBACK_STREAMS_MAX)

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None  # gRPC answers UNIMPLEMENTED
        method = str(details.method)
        if handler.unary_unary and not handler.request_streaming:
            make, inner = grpc.unary_unary_rpc_method_handler, handler.unary_unary
        elif handler.unary_stream and not handler.request_streaming:
            make, inner = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        else:
            return None
        return make(
            self._guarded(method, inner, handler.request_deserializer),
            request_deserializer=None,  # the bytes as they came
            response_serializer=handler.response_serializer,
        )

    def _guarded(self, method: str, inner: Behaviour, read: Callable[[bytes], Any]) -> Behaviour:
        role, op = ROLE_OF.get(method, ""), method.rpartition("/")[2].lower()

        def call(raw: bytes, context: grpc.ServicerContext) -> Any:
            who = caller(context, self.rules)
            try:
                request = read(raw)
            except DecodeError:
                request = None
            if role not in who.roles:
                self._deny(who, role, op, request, context)
            if request is None:
                self._refuse_malformed(who, role, op, raw, context)
            ahead = role == CLEAR and request.epoch > self.epoch_seen()
            if ahead and APPLY not in who.roles:
                self._deny(who, APPLY, op, request, context)
            if role in COMMANDS:
                return self._command(who, op, inner, request, context)
            if who.via == LOOPBACK and method in STREAMS:
                self._take_stream(context)
            answer = inner(request, context)
            if op == "describe":
                answer.roles[:] = who.roles
            return answer

        return call

    def _take_stream(self, context: grpc.ServicerContext) -> None:
        """A place for the length of the call; ends the call if all are taken."""
        if not self._loopback_streams.acquire(blocking=False):
            why = f"{LOOPBACK_STREAMS_MAX} streams without a certificate already"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        if not context.add_callback(self._loopback_streams.release):  # it has already ended
            self._loopback_streams.release()

    def _refuse_malformed(
        self, who: Caller, role: str, op: str, raw: bytes, context: grpc.ServicerContext
    ) -> NoReturn:
        self.malformed(op)
        why = f"{len(raw)} bytes are not a request of {op}: nothing was changed"
        if role in COMMANDS:
            entry = {"op": op, **_who(who), "result": "refused", "refused": why}
            self.audit_log.write_refusal(entry, who.name, op, "malformed")
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
        raise AssertionError("abort always raises")

    def _deny(
        self, who: Caller, role: str, op: str, request: Any, context: grpc.ServicerContext
    ) -> NoReturn:
        # A clear with a new epoch also needs the role apply.
        what = f"{op} with a new epoch" if (role, op) == (APPLY, "clear") else op
        why = f"{what} needs the role {role or '(none allows it)'}; "
        why += f"{who.name or 'an unnamed caller'} has {', '.join(who.roles) or 'none'}"
        if who.via == LOOPBACK:
            why += "; commands need a client certificate, or the socket listen.grpc_socket"
        self.denied(role)
        asked = _asked(op, request) if role in COMMANDS and request is not None else {}
        entry = {"op": op, **_who(who), **asked, "result": "denied", "refused": why}
        self.audit_log.write_refusal(entry, who.name, op)
        code = grpc.StatusCode.PERMISSION_DENIED if who.name else grpc.StatusCode.UNAUTHENTICATED
        context.abort(code, why)
        raise AssertionError("abort always raises")

    def _command(
        self, who: Caller, op: str, inner: Behaviour, request: Any, context: grpc.ServicerContext
    ) -> Any:
        entry = {"op": op, **_who(who), **_asked(op, request)}
        try:
            answer = inner(request, context)
        except Exception as error:
            said = getattr(context, "details", lambda: b"")() or type(error).__name__
            text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
            refusal = {**entry, "result": "refused", "refused": text}
            self.audit_log.write_refusal(refusal, who.name, op, text)
            raise
        outcome = _outcome(answer)
        if op != "renew":
            self.audit_log.write({**entry, **outcome})
        elif outcome["result"] == "refused":  # an accepted heartbeat is not logged
            self.audit_log.write_refusal(
                {**entry, **outcome}, who.name, op, request.job, request.epoch, request.generation
            )
        return answer


def _who(who: Caller) -> dict[str, str]:
    return {"who": who.name, "via": who.via}


def _asked(op: str, request: Any) -> dict[str, Any]:
    """The request, and its reason, as fields of the audit log."""
    if op in {"release", "resume"}:
        asked = {"duration_s": request.duration_s} if op == "release" else {}
        return {**asked, "why": request.reason}
    asked = {"job": request.job, "epoch": request.epoch}
    if op in {"apply", "renew"}:
        asked |= {"generation": request.generation, "ttl_s": request.ttl_s}
    if op == "apply":
        asked["gpus"] = dict(_settings(request))
    elif op == "clear":
        asked["gpus"] = dict.fromkeys(list(request.uuids)[:64], "default")
    return asked if op == "renew" else {**asked, "why": request.reason}


def _settings(request: Any) -> Iterator[tuple[str, str]]:
    for setting in list(request.settings)[:64]:  # a refused request may name any number
        words = []
        if setting.clock_max_mhz:
            words.append(f"{setting.clock_min_mhz}-{setting.clock_max_mhz}MHz")
        if setting.HasField("power_limit_mw"):
            words.append(f"{setting.power_limit_mw / MW_PER_W:g}W")
        if setting.program:
            lowest_mhz = min(step.clock_max_mhz for step in setting.program)
            words.append(f"{len(setting.program)} steps down to {lowest_mhz}MHz")
        yield setting.uuid, ",".join(words)


def _outcome(answer: Any) -> dict[str, Any]:
    results = list(getattr(answer, "results", ()))
    refused = {result.uuid: result.reason for result in results if not result.accepted}
    if refused:
        return {"result": "refused", "refused": refused if any(refused) else refused[""]}
    return {"result": "accepted", **({"changed": len(results)} if results else {})}
