"""The manifests of docs/kubernetes.md against the models that Kubeflow publishes with its API."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "kubernetes"

pytestmark = pytest.mark.skipif(
    not os.environ.get("CI") and (find_spec("kubeflow_trainer_api") is None or find_spec("yaml") is None),
    reason="needs kubeflow-trainer-api and pyyaml, of the extra dev",
)


def manifest(name):
    import yaml

    return yaml.safe_load((FOLDER / name).read_text())


def known(model, value):
    """Whether every field of a manifest is one of the API's, of its type: what is unknown does not come back."""
    from kubeflow_trainer_api import models

    return getattr(models, model).from_dict(value).to_dict() == value


def test_the_jobset_is_one():
    """Every field is known to JobSet, Job and Pod; a misspelt one is found."""
    job = manifest("jobset.yaml")
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert known("JobsetV1alpha2JobSet", job)
    spec = job["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec["template"]["spec"]["terminationGracePeriodSecond"] = 1
    assert not known("JobsetV1alpha2JobSet", job)


def test_the_jobset_fits_itself():
    """The name of the rendezvous is pod 0's, the nodes are as many as the pods, the grace fits into Kubernetes' own."""
    job = manifest("jobset.yaml")
    replicated = job["spec"]["replicatedJobs"][0]
    spec = replicated["template"]["spec"]
    pod = spec["template"]["spec"]
    options = dict(word.removeprefix("--").split("=") for word in pod["containers"][0]["command"] if "=" in word)
    name = job["metadata"]["name"]
    assert options["rdzv"].split(":")[0] == f"{name}-{replicated['name']}-0-0.{name}"
    assert int(options["nnodes"]) == spec["completions"] == spec["parallelism"]
    assert int(options["nproc"]) == pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert int(options["grace"]) + 5 < pod["terminationGracePeriodSeconds"]
    exits = {
        rule["onExitCodes"]["values"][0]: rule["action"]
        for rule in spec["podFailurePolicy"]["rules"]
        if "onExitCodes" in rule
    }
    assert exits == {75: "Ignore", 2: "FailJob"}
    assert pod["restartPolicy"] == "Never"


def test_the_trainjob_is_one():
    """Every field is known to Kubeflow Trainer."""
    job = manifest("trainjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert known("TrainerV1alpha1TrainJob", job)


def test_the_pytorchjobs_pods_are_pods():
    """Both replicas run the same pod, of known fields; the container has the name that the operator looks for."""
    job = manifest("pytorchjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert list(replicas) == ["Master", "Worker"]
    assert replicas["Master"] == replicas["Worker"]
    assert set(replicas["Master"]) == {"replicas", "restartPolicy", "template"}
    assert known("IoK8sApiCoreV1PodTemplateSpec", replicas["Master"]["template"])
    assert replicas["Master"]["template"]["spec"]["containers"][0]["name"] == "pytorch"
