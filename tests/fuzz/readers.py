"""Readers of what others send or write: each takes bytes and raises what it promises."""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from google.protobuf.message import DecodeError

from joulecut_controller.cluster import history
from joulecut_controller.fleet.gpu_owners import GpuOwners
from joulecut_controller.policy.parse import parse as parse_policy
from joulecut_controller.reconcile import power_budget
from joulecut_controller.sources import profile
from joulecut_controller.sources.prometheus import Access, Prometheus
from joulecut_lab import run_file
from joulecut_lab.trace import chakra
from joulecut_wire import codec, document, reports
from joulecut_wire.errors import JoulecutError
from joulecut_wire.http_client import Answer
from joulecut_wire.v1 import agent_pb2 as pb

Reader = Callable[[bytes], object]


class _Given:
    """Stands for HTTP: the answer is the bytes."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def ask(self, *_: Any, **__: Any) -> Answer:
        return Answer(200, "OK", None, self._body)


def _prometheus(raw: bytes, ask: Callable[[Prometheus], object]) -> None:
    client = Prometheus("http://127.0.0.1:9", Access())
    client._server = _Given(raw)
    ask(client)


def _file(raw: bytes, read: Callable[[Path], object]) -> None:
    with NamedTemporaryFile() as file:
        file.write(raw)
        file.flush()
        read(Path(file.name))


def _message(kind: Any, decode: Callable[[Any], object]) -> Reader:
    def read(raw: bytes) -> None:
        try:
            message = kind.FromString(raw)
        except DecodeError:
            return  # gRPC answers this by itself
        decode(message)

    return read


def _no_profile(_: str) -> Any:
    raise JoulecutError("no profile here")


READERS: Mapping[str, Reader] = {
    "report": reports.decode,
    "tick": _message(pb.WatchResponse, codec.decode_tick),
    "node": _message(pb.DescribeResponse, codec.decode_node),
    "command": _message(pb.ApplyRequest, codec.decode_command),
    "results": _message(pb.ApplyResponse, codec.decode_results),
    "rate": lambda raw: _prometheus(raw, lambda one: one.now("up")),
    "matrix": lambda raw: _prometheus(raw, lambda one: one.range("up", 0.0, 1.0, 1.0)),
    "policy": lambda raw: parse_policy(document.parse(raw, "p"), _no_profile),
    "profile": lambda raw: profile.parse(raw, "p"),
    "config": lambda raw: run_file.huggingface(raw, Path("config.json")),
    "chakra": lambda raw: _file(raw, lambda path: chakra.read(path, 0)),
    "limits": lambda raw: power_budget._read(raw.decode(errors="replace")),
    "owners": lambda raw: GpuOwners().restore(raw.decode(errors="replace"), 0.0),
    "history": lambda raw: history._from_json(raw.decode(errors="replace")),
}
PROMISED = (JoulecutError,)
