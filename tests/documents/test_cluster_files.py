"""configs/cluster/: what can be checked without the cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from classify.config.parser import parse_training
from tests.support.processes import ROOT

CLUSTER = ROOT / "configs" / "cluster"

# Fields of kubeflow.org/v1 PyTorchJob as the operator publishes them: manifests/base/crds/kubeflow.org_pytorchjobs.yaml
# of kubeflow/training-operator at c20bf65e03b85543c0b2ff25b14c7e335cce34f9.
FIELDS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"elasticPolicy", "nprocPerNode", "pytorchReplicaSpecs", "runPolicy"},
    "runPolicy": {
        "activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "managedBy", "schedulingPolicy", "suspend",
        "ttlSecondsAfterFinished",
    },
    "replica": {"replicas", "restartPolicy", "template"},
}  # fmt: skip


def job() -> dict[str, Any]:
    result: dict[str, Any] = yaml.safe_load((CLUSTER / "pytorchjob.yaml").read_text())
    return result


def test_the_kubernetes_job_has_the_operators_fields() -> None:
    result = job()
    spec = result["spec"]
    assert (result["apiVersion"], result["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert set(result) <= FIELDS[""]
    assert set(spec) <= FIELDS["spec"]
    assert {"pytorchReplicaSpecs", "runPolicy"} <= set(spec), "both are required"
    assert isinstance(spec["nprocPerNode"], str)
    assert set(spec["runPolicy"]) <= FIELDS["runPolicy"]
    assert set(spec["pytorchReplicaSpecs"]) <= {"Master", "Worker"}
    for replica in spec["pytorchReplicaSpecs"].values():
        assert set(replica) <= FIELDS["replica"]
        assert replica["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")


def test_its_pods_can_run() -> None:
    spec = job()["spec"]
    assert spec["pytorchReplicaSpecs"]["Master"]["replicas"] == 1
    for replica in spec["pytorchReplicaSpecs"].values():
        pod = replica["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == "pytorch", "the operator adds its variables to the container of this name"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == int(spec["nprocPerNode"])
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        assert container["command"][:4] == ["torchrun", "-m", "classify", "train"]
        config = parse_training(container["command"][4:], "classify train")
        assert config.training.resume_from_checkpoint is True


@pytest.mark.parametrize("path", sorted(CLUSTER.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_say_what_to_change_and_parse(path: Path) -> None:
    text = path.read_text()
    assert f"configs/cluster/{path.name}" in text
    assert "# Change: " in text
    assert subprocess.run(["bash", "-n", str(path)], check=False, timeout=20).returncode == 0


def test_every_file_is_headed_by_what_to_change() -> None:
    names = {path.name for path in CLUSTER.iterdir()}
    assert names == {"slurm.sh", "two-machines.sh", "pytorchjob.yaml"}
    for name in names:
        head = [line for line in (CLUSTER / name).read_text().splitlines()[:14] if line.startswith("#")]
        assert any(line.startswith("# Change: ") for line in head), name
