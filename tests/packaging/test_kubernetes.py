"""The page on Kubernetes, word by word, against the manifests: no cluster is needed.

Their schema is checked by `make packages`, strictly, for the oldest and the newest version.
"""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from collectors.ingest import kubelet
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.cli.main import main
from zeus_stream.package_version import VERSION
from zeus_stream.screens.metrics import metrics
from zeus_stream.settings import read

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging" / "kubernetes"
PAGE = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text(encoding="utf-8")
PYTHON = ROOT / ".packages" / "bin" / "python"
TO_JSON = (
    "import json, sys, yaml; json.dump([[*yaml.safe_load_all(open(p))] for p in sys.argv[1:]], sys.stdout)"
)
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no parser of YAML: `make packages` runs it")
Object = dict[str, Any]


@pytest.fixture(scope="module")
def files() -> dict[str, list[Object]]:
    """The objects of each manifest, by its path below the folder."""
    paths = sorted(FOLDER.rglob("*.yaml"))
    return {
        str(path.relative_to(FOLDER)): found for path, found in zip(paths, read_yaml(*paths), strict=True)
    }


def read_yaml(*paths: Path) -> list[list[Object]]:
    """Return the objects of each file."""
    done = subprocess.run([PYTHON, "-c", TO_JSON, *paths], capture_output=True, text=True, check=True)
    found: list[list[Object]] = json.loads(done.stdout)
    return found


def pods(files: dict[str, list[Object]]) -> Iterator[tuple[str, Object]]:
    """Yield the specification of each pod, with its manifest."""
    for name, objects in files.items():
        for each in objects:
            if each["kind"] in ("DaemonSet", "Deployment"):
                yield name, each["spec"]["template"]["spec"]
            elif each["kind"] == "Pod":
                yield name, each["spec"]


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def commands() -> list[list[str]]:
    (block,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    return [shlex.split(line.removeprefix("$ ")) for line in block.splitlines()]


def option(command: list[str], name: str) -> str:
    """Return the value of ``--name VALUE`` or ``--name=VALUE``."""
    text = " ".join(command)
    (found,) = re.findall(rf"--{name}[ =](\S+)", text)
    return str(found)


def test_the_commands_of_the_page_name_what_is_there(files: dict[str, list[Object]]) -> None:
    build, apply, secret, kustomize = commands()
    (kustomization,) = files["kustomization.yaml"]
    assert build[:2] == ["docker", "build"]
    assert (ROOT / option(build, "file")).is_file()
    image, tag = option(build, "tag").split(":")
    assert kustomization["images"] == [{"name": image, "newTag": tag}]
    assert tag == VERSION
    (namespace,) = files[str(Path(option(apply, "filename")).relative_to("packaging/kubernetes"))]
    assert namespace["kind"] == "Namespace"
    assert namespace["metadata"]["name"] == option(secret, "namespace") == kustomization["namespace"]
    assert secret[:4] == ["kubectl", "create", "secret", "generic"]
    name, key = secret[4], option(secret, "from-literal").partition("=")[0]
    (collector,) = files["collector.yaml"]
    volumes = collector["spec"]["template"]["spec"]["volumes"]
    assert {"name": "token", "secret": {"secretName": name}} in volumes
    (monitor,) = files["pod-monitor.yaml"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": name, "key": key}
    assert (ROOT / option(kustomize, "kustomize") / "kustomization.yaml").is_file()


@pytest.mark.parametrize("folder", ["", "lake/"])
def test_each_manifest_of_a_folder_is_applied_but_the_example(
    files: dict[str, list[Object]], folder: str
) -> None:
    here = {name.removeprefix(folder) for name in files if name.startswith(folder)}
    own = {name for name in here if "/" not in name} - {"kustomization.yaml", "trainer.yaml"}
    (kustomization,) = files[f"{folder}kustomization.yaml"]
    assert set(kustomization["resources"]) == own


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl, which has kustomize, is not installed")
@pytest.mark.parametrize(("folder", "tag"), [("", VERSION), ("lake", f"{VERSION}-lake")])
def test_kustomize_gives_every_object_its_namespace_and_every_container_the_image(
    tmp_path: Path, folder: str, tag: str
) -> None:
    built = tmp_path / "built.yaml"
    with built.open("w") as out:
        subprocess.run(["kubectl", "kustomize", FOLDER / folder], stdout=out, check=True)
    (objects,) = read_yaml(built)
    others = [each for each in objects if each["kind"] != "Namespace"]
    assert {each["metadata"]["namespace"] for each in others} == {"zeus-stream"}
    images = {one["image"] for _, pod in pods({"built": objects}) for one in containers(pod)}
    assert images == {f"zeus-stream:{tag}"}


def test_the_privileges_are_those_of_the_table(files: dict[str, list[Object]]) -> None:
    rows = re.findall(r"^\| .*? \| `([\w/.-]+\.yaml)`.*? \| (.*?) \|$", PAGE, re.MULTILINE)
    assert {name for name, _ in rows} == {name for name, _ in pods(files)}
    for name, pod in pods(files):
        words = dict(rows)[name]
        asked = {
            each for one in containers(pod) for each in one["securityContext"]["capabilities"].get("add", ())
        }
        assert all(one["securityContext"]["capabilities"]["drop"] == ["ALL"] for one in containers(pod))
        assert all(one["securityContext"]["allowPrivilegeEscalation"] is False for one in containers(pod))
        if words.startswith("root"):
            assert asked == set(re.findall(r"SYS_\w+", words)) != set()
            assert pod["hostPID"] is ("process namespace of the host" in words)
        else:
            assert words.startswith("none")
            assert not asked
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert "hostPID" not in pod


def test_every_mount_has_its_volume_and_the_kubelet_is_found_where_it_is_mounted(
    files: dict[str, list[Object]],
) -> None:
    for name, pod in pods(files):
        mounts = [mount for one in containers(pod) for mount in one["volumeMounts"]]
        assert {mount["name"] for mount in mounts} == {volume["name"] for volume in pod["volumes"]}, name
    ((_, collector),) = [(name, pod) for name, pod in pods(files) if name == "collector.yaml"]
    (at,) = {
        m["mountPath"] for one in containers(collector) for m in one["volumeMounts"] if m["name"] == "kubelet"
    }
    (source,) = [each["hostPath"]["path"] for each in collector["volumes"] if each["name"] == "kubelet"]
    assert str(kubelet.SOCKET.parent) == at == source


def test_a_service_that_is_not_root_makes_its_directory_below_its_volume(
    files: dict[str, list[Object]],
) -> None:
    """The root of a volume belongs to root, whatever `fsGroup` is: analyzer and archivers refused it."""
    services = [(name, pod) for name, pod in pods(files) if "fsGroup" in str(pod) or name.startswith("lake/")]
    assert {name for name, _ in services} == {"analyzer.yaml", "lake/archiver.yaml"}
    for name, pod in services:
        for one in containers(pod):
            (state,) = [mount["mountPath"] for mount in one["volumeMounts"] if mount["name"] == "state"]
            (place,) = [each["value"] for each in one["env"] if each["name"] == "ZEUS_STREAM_DIR"]
            assert Path(state) in Path(place).parents, name


def test_a_training_mounts_the_socket_read_only(files: dict[str, list[Object]]) -> None:
    (trainer,) = [pod for name, pod in pods(files) if name == "trainer.yaml"]
    (mount,) = [mount for one in containers(trainer) for mount in one["volumeMounts"]]
    assert f"it mounts `{mount['mountPath']}`, read-only" in PAGE
    assert mount["readOnly"] is True


def test_each_service_starts_with_options_that_its_command_has(files: dict[str, list[Object]]) -> None:
    ours = [one for _, pod in pods(files) for one in containers(pod) if one["image"] == "zeus-stream"]
    assert len(ours) >= 6
    for one in ours:
        name, *arguments = one["args"]
        command = main.get_command(click.Context(main), name)
        assert command is not None, name
        command.make_context(name, arguments)  # parses, and does not run


def test_prometheus_scrapes_each_collector_and_the_analyzer(files: dict[str, list[Object]]) -> None:
    """Nothing scraped the analyzer: no Prometheus had its jobs, runs and hosts, nor how far it is behind."""
    (monitor,) = files["pod-monitor.yaml"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    secret = endpoint["authorization"]["credentials"]["name"]
    templates = [each["spec"]["template"] for objects in files.values() for each in objects
                 if each["kind"] in ("DaemonSet", "Deployment")]  # fmt: skip
    scraped = set()
    for template in (each for each in templates if wanted <= each["metadata"]["labels"].items()):
        for one in template["spec"]["containers"]:
            if endpoint["port"] in {port["name"] for port in one.get("ports", ())}:
                assert {"name": "token", "secret": {"secretName": secret}} in template["spec"]["volumes"]
                command, *options = one["args"]
                assert command == "metrics"
                scraped.add(option(options, "of") if "--of" in options else "collector")
    assert scraped == {"collector", "analyzer"}


def test_the_settings_are_understood(files: dict[str, list[Object]], tmp_path: Path) -> None:
    (config,) = files["settings.yaml"]
    text = config["data"]["zeus-stream.toml"]
    (tmp_path / "zeus-stream.toml").write_text(text, encoding="utf-8")
    found = read({}, {}, tmp_path / "zeus-stream.toml")
    assert set(found) == set(tomllib.loads(text)) <= {*SiteSettings.__struct_fields__}


def test_the_sentences_name_what_the_manifests_and_commands_have(files: dict[str, list[Object]]) -> None:
    (policy,) = files["network-policy.yaml"]
    let_in = {rule["from"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
              for rule in policy["spec"]["ingress"]}  # fmt: skip
    assert let_in == {"monitoring", "ingress"}
    assert "lets the namespaces `monitoring` and `ingress` in, and the services out to `nats`" in PAGE
    (line,) = re.findall(r"`(kubectl exec .*?)`", PAGE)
    words = shlex.split(line)
    deployment = next(each for each in files["analyzer.yaml"] if each["kind"] == "Deployment")
    assert f"deploy/{deployment['metadata']['name']}" in words
    names = {one["name"] for one in deployment["spec"]["template"]["spec"]["containers"]}
    assert option(words, "container") in names
    web = main.get_command(click.Context(main), "web")
    assert web is not None
    flags = {flag for parameter in web.params for flag in parameter.opts}
    assert {"--url", "--host-name"} <= flags
    (metric,) = re.findall(r"rate\((\w+)\[", PAGE)
    assert f'"{metric}"' in Path(metrics.__file__).read_text(encoding="utf-8")
