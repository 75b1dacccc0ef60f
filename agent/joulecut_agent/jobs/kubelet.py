"""Client of the kubelet's pod-resources socket: the devices of each pod of this node.

The kubelet recreates the socket when it starts, so each failure ends the connection and the next
request opens another.
"""

from dataclasses import dataclass
from pathlib import Path

import grpc

from joulecut_agent.log import Warnings, log
from joulecut_wire.kubelet import podresources_pb2 as pb

ANSWER_WAIT_S = 1.0  # the kubelet answers from memory
ANSWER_BYTES_MAX = 16 << 20  # as its other clients allow; 110 pods take 100 kB
METHOD = "/v1.PodResourcesLister/List"
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")
# Time-slicing may rename what is shared (device plugin, `renameByDefault`).
SHARED_SUFFIX = ".shared"


@dataclass(frozen=True, slots=True)
class PodDevices:
    """GPUs of one pod: `devices` by device plugin, `claimed` by (driver, device, CDI names)."""

    namespace: str
    name: str
    devices: tuple[str, ...]
    claimed: tuple[tuple[str, str, tuple[str, ...]], ...] = ()


class Silent(Exception):
    """The kubelet does not answer: it restarts, or the socket's path is wrong."""


class Kubelet:
    """For one thread."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel: grpc.Channel | None = None
        self._inode = 0
        self._warnings = Warnings()

    def pods(self) -> tuple[PodDevices, ...]:
        """Every pod that holds a GPU. Raises Silent."""
        try:
            inode = self._socket.stat().st_ino
            if inode != self._inode:  # the socket of another kubelet
                self.close()
            self._inode = inode
            answer = self._ask()
        except OSError as error:
            self._fail(f"{self._socket}: {error.strerror}")
        except grpc.RpcError as error:
            self._fail(f"{self._socket}: {error.code().name.lower()}")
        except ValueError:  # protobuf's DecodeError
            self._fail(f"{self._socket}: not a kubelet's answer")
        if self._warnings.last:
            log("agent", "the kubelet answers")
            self._warnings.say("")
        found = (_pod(pod) for pod in answer.pod_resources)
        return tuple(pod for pod in found if pod.devices or pod.claimed)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None

    def _ask(self) -> pb.ListPodResourcesResponse:
        if self._channel is None:
            options = [
                ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
                ("grpc.enable_http_proxy", 0),
                ("grpc.use_local_subchannel_pool", 1),
            ]
            self._channel = grpc.insecure_channel(f"unix:{self._socket}", options)
        listed = self._channel.unary_unary(
            METHOD,
            request_serializer=pb.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pb.ListPodResourcesResponse.FromString,
        )
        answer: pb.ListPodResourcesResponse = listed(
            pb.ListPodResourcesRequest(), timeout=ANSWER_WAIT_S
        )
        return answer

    def _fail(self, why: str) -> None:
        self.close()
        self._warnings.say(f"owners of GPUs cannot be read from the kubelet: {why}")
        raise Silent(why)


def _pod(pod: pb.PodResources) -> PodDevices:
    devices = [
        device
        for container in pod.containers
        for given in container.devices
        if given.resource_name.removesuffix(SHARED_SUFFIX).startswith(GPU_RESOURCES)
        for device in given.device_ids
    ]
    claimed = [
        (one.driver_name, one.device_name, tuple(cdi.name for cdi in one.cdi_devices))
        for container in pod.containers
        for claim in container.dynamic_resources
        for one in claim.claim_resources
        if "nvidia.com" in one.driver_name or any("nvidia.com" in c.name for c in one.cdi_devices)
    ]
    return PodDevices(pod.namespace, pod.name, tuple(devices), tuple(claimed))
