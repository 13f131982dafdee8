"""The examples of clusters are what their tools take, and fit what this release was tested with.

The Ray cluster is checked by Ray's own schema and its own preparation. KubeRay's schema comes in no
Python package; its manifest is checked for what an API server would stumble over first.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from autellix.runtime.cli import app

CLUSTER = Path(__file__).resolve().parents[2] / "examples" / "cluster"
QUANTITY = re.compile(r"\d+(\.\d+)?(m|Ki|Mi|Gi|Ti|k|M|G|T)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def options_of(command: str) -> set[str]:
    """Options that a command has, by its own help."""
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"})
    return set(re.findall(r"--[a-z][a-z-]+", shown.output))


def serve_words(text: str) -> list[str]:
    """The words of the ``autellix serve`` in a text."""
    return shlex.split(text[text.index("autellix serve ") :].partition("'")[0])


# ── Ray ──────────────────────────────────────────────────────────────────────────────────────


def test_rays_own_schema_takes_the_cluster() -> None:
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'autellix[ray]'")
    from ray.autoscaler._private.util import prepare_config, validate_config

    jsonschema = pytest.importorskip("jsonschema")
    config = yaml.safe_load((CLUSTER / "ray-cluster.yaml").read_text())
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    prepared = prepare_config(config)
    validate_config(prepared)
    assert prepared["max_workers"] == len(config["provider"]["worker_ips"])


def test_the_command_that_the_cluster_is_for_exists() -> None:
    words = serve_words((CLUSTER / "ray-cluster.yaml").read_text())
    assert {word for word in words if word.startswith("--")} <= options_of("serve")


# ── Kubernetes ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    found = list(yaml.safe_load_all((CLUSTER / "kuberay.yaml").read_text()))
    return {document["kind"]: document for document in found}


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = manifest["RayCluster"]["spec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"] for group in groups] + [manifest["Deployment"]["spec"]["template"]]


def test_the_manifest_is_of_kinds_that_there_are(manifest: dict[str, Any]) -> None:
    versions = {kind: document["apiVersion"] for kind, document in manifest.items()}
    assert versions == {
        "Secret": "v1",
        "RayCluster": "ray.io/v1",
        "Deployment": "apps/v1",
        "Service": "v1",
    }
    assert all(NAME.fullmatch(document["metadata"]["name"]) for document in manifest.values())


def test_its_ray_is_the_one_that_was_tested(manifest: dict[str, Any]) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'autellix[ray]'")
    from autellix.runtime import ray_names

    assert manifest["RayCluster"]["spec"]["rayVersion"].startswith(ray_names.TESTED)


def test_its_cluster_has_what_kuberay_requires(manifest: dict[str, Any]) -> None:
    spec = manifest["RayCluster"]["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    for group in spec["workerGroupSpecs"]:
        assert NAME.fullmatch(group["groupName"])
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_its_containers_are_whole(manifest: dict[str, Any]) -> None:
    for pod in pods(manifest):
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", ())}
        mounted = set()
        for container in pod["spec"]["containers"]:
            assert NAME.fullmatch(container["name"])
            assert container["image"]
            limits, requests = container["resources"]["limits"], container["resources"]["requests"]
            assert limits == requests, "Ray takes the limits for what the machine has"
            assert all(isinstance(v, str) and QUANTITY.fullmatch(v) for v in limits.values())
            mounted |= {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounted == volumes


def test_everybody_has_the_same_token_and_it_is_in_the_secret(manifest: dict[str, Any]) -> None:
    secret = manifest["Secret"]
    for pod in pods(manifest):
        for container in pod["spec"]["containers"]:
            named = {entry["name"]: entry for entry in container["env"]}
            assert named["RAY_AUTH_MODE"]["value"] == "token"
            reference = named["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
            assert reference["name"] == secret["metadata"]["name"]
            assert reference["key"] in secret["stringData"]


def test_its_coordinator_is_started_with_options_that_there_are(manifest: dict[str, Any]) -> None:
    (container,) = manifest["Deployment"]["spec"]["template"]["spec"]["containers"]
    words = serve_words(container["args"][0])
    assert {word for word in words if word.startswith("--")} <= options_of("serve")
    assert words[words.index("--engine") + 1] == "ray"
    variables = {e["name"] for e in container["env"] if e["name"].startswith("AUTELLIX_")}
    assert {
        "--" + name.removeprefix("AUTELLIX_").lower().replace("_", "-") for name in variables
    } <= (options_of("serve"))
    assert f"{manifest['RayCluster']['metadata']['name']}-head-svc:6379" in container["args"][0]


def test_the_service_finds_the_coordinator(manifest: dict[str, Any]) -> None:
    labels = manifest["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert manifest["Service"]["spec"]["selector"].items() <= labels.items()
    assert manifest["Deployment"]["spec"]["selector"]["matchLabels"] == labels
