"""The pod of a run: by its cgroup and the kubelet, for which a stand-in answers here."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from collectors import processes
from collectors.ingest.kubelet import find_pod
from tests.collectors.devices.arithmetic import ArithmeticBus
from tests.collectors.test_service import GPU, collector
from zeus_stream.errors import UnreachableError
from zeus_stream.protocol.notes import Lost, Pod, RunAdmitted
from zeus_stream.protocol.snapshots import AskNow, Snapshot
from zeus_stream.screens.metrics.metrics import gpu_families
from zeus_stream.settings import Settings

grpc = pytest.importorskip("grpc")
CGROUP = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7.slice/cri-containerd-1.scope"
TRAIN = Pod(namespace="ml", name="train-0", container="main")


def field(number: int, content: bytes) -> bytes:
    """Return a field of a protobuf message, as the kubelet writes one of at most 127 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def given(pod: Pod, *devices: str) -> bytes:
    """Return the answer's part about one container. Device plugins also say NUMA nodes, which are skipped."""
    ids = b"".join(field(2, each.encode()) for each in devices)
    held = field(1, b"nvidia.com/gpu") + ids + field(3, b"")
    container = field(1, pod.container.encode()) + field(2, held)
    return field(1, field(1, pod.name.encode()) + field(2, pod.namespace.encode()) + field(3, container))


@contextmanager
def kubelet(socket: Path, answer: bytes) -> Iterator[Path]:
    """Serve ``v1.PodResourcesLister`` at a socket."""
    server = grpc.server(ThreadPoolExecutor(1))
    listing = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)
    handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": listing})
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        yield socket
    finally:
        server.stop(None).wait()


DEVICES = tuple(
    replace(device.describe(), tenants=(f"MIG-{index}a", f"MIG-{index}b"))
    for index, device in enumerate(ArithmeticBus(2).discover())
)
OTHER = Pod(namespace="ml", name="other", container="main")


@pytest.mark.parametrize(
    ("held", "asked", "found"),
    [
        pytest.param(((TRAIN, GPU),), (GPU,), TRAIN, id="a whole GPU"),
        pytest.param(((TRAIN, f"{GPU}::1"),), ("index:0",), TRAIN, id="a share in time"),
        pytest.param(((TRAIN, "MIG-0a"), (OTHER, "MIG-0b")), ("MIG-0b",), OTHER, id="a MIG instance"),
        pytest.param(((OTHER, "GPU-0001"),), (GPU,), None, id="a GPU of no pod"),
    ],
)
def test_a_pod_is_the_one_that_the_gpus_are_given_to(
    tmp_path: Path, held: tuple[tuple[Pod, str], ...], asked: tuple[str, ...], found: Pod | None
) -> None:
    with kubelet(tmp_path / "k", b"".join(given(*each) for each in held)) as socket:
        assert find_pod(socket, asked, (GPU,), DEVICES) == found


def test_a_gpu_that_several_pods_share_tells_no_pod(tmp_path: Path) -> None:
    answer = given(TRAIN, f"{GPU}::0") + given(OTHER, f"{GPU}::1")
    with (
        kubelet(tmp_path / "k", answer) as socket,
        pytest.raises(UnreachableError, match="2 containers share the GPUs"),
    ):
        find_pod(socket, ("index:0",), (GPU,), DEVICES)


@pytest.mark.parametrize(
    ("content", "path"),
    [
        pytest.param(f"0::{CGROUP}\n", CGROUP, id="version 2"),
        pytest.param(f"0::/../../..{CGROUP}\n", CGROUP, id="seen from another branch"),
        pytest.param(f"9:devices:/a:b\n1:name=systemd:{CGROUP}\n", CGROUP, id="version 1"),
        pytest.param("0::/\n", "/", id="the root"),
    ],
)
def test_the_cgroup_of_a_process_is_said_from_the_root_of_the_host(
    tmp_path: Path, content: str, path: str
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(content)
    assert processes.cgroup(7, tmp_path) == path
    assert processes.cgroup(8, tmp_path) is None


@pytest.mark.anyio
@pytest.mark.parametrize("answers", [True, False])
async def test_a_run_in_a_pod_names_it_and_so_do_the_metrics_of_its_gpu(
    zeus_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    monkeypatch.setattr(processes, "cgroup", lambda _pid: CGROUP)
    settings = Settings(device="test", kubelet=tmp_path / "k")
    with kubelet(tmp_path / ("k" if answers else "elsewhere"), given(TRAIN, GPU)):
        async with collector(ArithmeticBus(1), zeus_dir, 1, settings=settings) as client:
            await client.start_run()
            (word,) = await client.notes(RunAdmitted)
            now, _ = await client.request(AskNow())
            lost = [note.reason for note in await client.notes(Lost) if note.what == "pods"]
    assert (word.cgroup, word.pod, word.may_command) == (CGROUP, TRAIN if answers else None, True)
    assert isinstance(now, Snapshot)
    labels = {
        label for each in gpu_families(now, "upper") for sample in each.samples for label in sample.labels
    }
    named = {("namespace", "ml"), ("pod", "train-0"), ("container", "main")}
    assert labels & named == (named if answers else set())
    assert [run.pods for run in now.runs] == [(TRAIN,) if answers else ()]
    assert len(lost) == (0 if answers else 1)
    assert answers or "Mount the kubelet's directory" in lost[0]
