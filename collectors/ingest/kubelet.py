"""The pod that a kubelet has given GPUs to, by its pod-resources socket (gRPC, ``v1.PodResourcesLister``)."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from collectors.device import Description
from collectors.ingest.sessions import resolve
from zeus_stream.errors import UnreachableError
from zeus_stream.protocol.notes import Pod
from zeus_stream.service_packages import install_command

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
ANSWER_S = 2.0
MAX_ANSWER_BYTES = 16 << 20
"""As the kubelet's own client takes."""
OF_PODS = "kubepods"
"""Part of the name of every pod's cgroup."""
_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
)
_FIELDS = {
    "ListPodResourcesResponse": (("pod_resources", 1, "PodResources"),),
    "PodResources": (("name", 1, ""), ("namespace", 2, ""), ("containers", 3, "ContainerResources")),
    "ContainerResources": (("name", 1, ""), ("devices", 2, "ContainerDevices")),
    "ContainerDevices": (("resource_name", 1, ""), ("device_ids", 2, "")),
}
"""What is read of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto: name, number, message or else text."""
_REPEATED = {"pod_resources", "containers", "devices", "device_ids"}


def find_pod(
    socket: Path, asked: Sequence[str], gpus: Sequence[str], devices: Sequence[Description]
) -> Pod | None:
    """Return the pod with a session's GPUs; None: no pod has them. Blocks for `ANSWER_S` at most.

    ``asked``: as the session names them, which tells MIG instances apart; ``gpus``: their UUIDs. Raises
    UnreachableError: nobody answers, or several pods share the GPUs.
    """
    held = [
        (Pod(namespace=pod.namespace, name=pod.name, container=container.name), device.partition("::")[0])
        for pod in _list(socket).pod_resources
        for container in pod.containers
        for given in container.devices
        for device in given.device_ids
    ]
    exact = {pod for pod, device in held if device in asked}
    found = exact or {pod for pod, device in held if set(gpus).intersection(resolve((device,), devices)[0])}
    if len(found) > 1:
        raise UnreachableError(
            f"{socket}: could not find the pod: {len(found)} containers share the GPUs. Give each its own."
        )
    return next(iter(found), None)


def _list(socket: Path) -> Any:
    try:
        import grpc  # noqa: PLC0415  (an extra, and seconds to import)
    except ImportError as wrong:
        raise UnreachableError(
            f"{socket}: could not be asked: grpcio is missing. Run {install_command('kubernetes')}."
        ) from wrong
    with grpc.insecure_channel(f"unix://{socket.absolute()}", options=_OPTIONS) as channel:
        ask = channel.unary_unary("/v1.PodResourcesLister/List", response_deserializer=_answer().FromString)
        try:
            return ask(b"", timeout=ANSWER_S)
        except grpc.RpcError as wrong:
            raise UnreachableError(
                f"{socket}: could not be asked: {wrong.code().name}: {wrong.details()}. Mount the kubelet's"
                " directory pod-resources, or name the socket with --kubelet."
            ) from wrong


@cache
def _answer() -> Any:
    """Return the class of the answer."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415  (an extra)

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="api.proto", package="v1", syntax="proto3")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for name, number, of in fields:
            label = field.LABEL_REPEATED if name in _REPEATED else field.LABEL_OPTIONAL
            kind = field.TYPE_MESSAGE if of else field.TYPE_STRING
            named = f".v1.{of}" if of else None
            described.field.add(name=name, number=number, label=label, type=kind, type_name=named)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))
