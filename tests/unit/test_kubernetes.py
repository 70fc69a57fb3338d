"""launch/kubernetes/job.yaml fits the schema of the Kubernetes API; tfdist reads the variables that its pods get."""

import copy

import pytest
import yaml
from launching import REPOSITORY

from tfdist.cluster.control import keys
from tfdist.cluster.discovery import environment
from tfdist.cluster.interruption import EXIT_MISMATCH, EXIT_PEER_LOST, EXIT_STOPPED

VERSION = "1.31"


def manifests():
    """The documents of the manifest, by their kind."""
    text = (REPOSITORY / "launch" / "kubernetes" / "job.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def test_the_manifest_fits_the_schema_of_the_api():
    validate = pytest.importorskip("kubernetes_validate")
    found = manifests()
    assert {*found} == {"Service", "Job"}
    for document in found.values():
        validate.validate(document, VERSION, strict=True)
    wrong = copy.deepcopy(found["Job"])
    wrong["spec"]["completion"] = wrong["spec"].pop("completions")
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, VERSION, strict=True)


def test_its_pods_find_one_another():
    job, service = manifests()["Job"], manifests()["Service"]
    name, spec = job["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    rank, *plain, key = pod["containers"][0]["env"]
    variables = {each["name"]: each["value"] for each in plain}
    for each, variable, field in ((key, keys.VARIABLE, "controller-uid"), (rank, "RANK", "job-completion-index")):
        assert each["name"] == variable and field in each["valueFrom"]["fieldRef"]["fieldPath"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name} and service["spec"]["clusterIP"] == "None"
    count = spec["completions"]
    assert count == spec["parallelism"] == int(variables["WORLD_SIZE"])
    for index in range(count):
        worker = environment.resolve(variables | {"RANK": str(index)}, port_base=10000, port_count=10000)
        assert (worker.rank, worker.num_workers) == (index, count)
        assert worker.chiefs == (f"{name}-0.{service['metadata']['name']}:{worker.port}",)


def test_a_stopped_worker_is_no_failure_and_an_error_ends_the_job():
    rules = manifests()["Job"]["spec"]["podFailurePolicy"]["rules"]
    actions = {code: rule["action"] for rule in rules for code in rule.get("onExitCodes", {}).get("values", ())}
    ends, ignored = (1, EXIT_MISMATCH), (EXIT_STOPPED, EXIT_PEER_LOST)
    assert actions == dict.fromkeys(ends, "FailJob") | dict.fromkeys(ignored, "Ignore")
