"""Mutations of objects, read here and by the real API server: both take them, or both refuse them.

`AAML_MANIFEST_MUTATIONS` says how many are drawn, `AAML_MANIFEST_SEED` by which seed.
"""

import json
import os
import random
import re
from contextlib import closing
from pathlib import Path
from typing import Any

from aaml.errors import UserError
from aaml.kube.objects.convert import pod_from_json
from aaml.kube.objects.manifests import load
from aaml.kube.transport import ApiError, Transport
from support.mutated_manifests import mutated, taken

MUTATIONS = int(os.environ.get("AAML_MANIFEST_MUTATIONS", "500"))
SEED = int(os.environ.get("AAML_MANIFEST_SEED", "0"))
FOLDERS = {
    "Pod": "/api/v1/namespaces/default/pods", "Node": "/api/v1/nodes", "Job": "/apis/batch/v1/namespaces/default/jobs",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    **{f"{kind}Set": f"/apis/apps/v1/namespaces/default/{kind.lower()}sets" for kind in ("Stateful", "Daemon")},
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
}  # fmt: skip
READ = "requests", "nonzero", "nonzero_containers", "gpu", "host_ports", "priority", "spread", "images", "affinity"
NOT_READ = re.compile(
    r"image: (Required|Invalid)|restartPolicy|containers: Required|ontainers\[\d\]\.name: (Required|Invalid)"
    r"|ports\[\d\]\.name|volumes\[\d\]\.name|emptyDir|tolerationSeconds of type|hostIP: Invalid"
    r"|must not contain dots|generateName"
    r"|(priorityClassName|[pP]reemptionPolicy|Policy): (Invalid|Required|Unsupported value: \"\")"
)
"""What the API server refuses and nothing here looks at, or reads as if it were not there."""
NOT_A_FILES = re.compile(
    r"no PriorityClass with name|namespace of the provided object|exists in both matchLabelKeys and labelSelector"
)
"""What it refuses by what it knows beside the file, and in what it has filled in itself: files may be exported ones."""
OURS = re.compile(r"alibabacloud\.com/gpu|metadata\.name: missing|whole number from 0 to 1000000|limits\.\S+: '[a-z]'")
"""What we refuse: GPUs that are none, objects that the API server would name, over a million pods, a lone suffix."""


def answer(api: Transport, document: dict[str, Any]) -> tuple[bytes, str]:
    """Return what the API server would store, or why it would not."""
    path = f"{FOLDERS[document['kind']]}?dryRun=All&fieldValidation=Strict"
    try:
        return api.request("POST", path, document), ""
    except ApiError as error:
        return b"", str(error)


def own_answer(file: Path, document: dict[str, Any]) -> tuple[list[Any], str]:
    file.write_text(json.dumps(document))
    try:
        return load([file]).pods, ""
    except UserError as error:
        return [], str(error)


def of_template(document: dict[str, Any]) -> dict[str, Any]:
    """Return a pod of a workload."""
    template = document["spec"]["template"]
    metadata = {**(template.get("metadata") or {}), "name": "one"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def differ(api: Transport, file: Path, document: dict[str, Any]) -> str:
    """Return in what the API server and we differ, "" for nothing."""
    stored, theirs = answer(api, document)
    pods, ours = own_answer(file, document)
    if theirs and not ours:
        return "" if NOT_READ.search(theirs) or NOT_A_FILES.search(theirs) else f"it refuses what we take: {theirs}"
    if ours and not theirs and not OURS.search(ours):
        if "template" in document.get("spec", {}) and answer(api, of_template(document))[1]:
            return ""  # it takes such a workload, and none of its pods
        return f"we refuse what it takes: {ours}"
    if document["kind"] == "Pod" and pods and stored:
        theirs_read = pod_from_json(stored)
        for name in READ:
            if getattr(pods[0], name) != getattr(theirs_read, name):
                return f"{name}: {getattr(pods[0], name)} here, {getattr(theirs_read, name)} there"
    return ""


def test_mutated_objects_are_taken_and_refused_as_the_api_server_does(kwok, tmp_path: Path) -> None:
    rng, bases, found = random.Random(SEED), taken(), []
    with closing(Transport(kwok.kubeconfig)) as api:
        assert [differ(api, tmp_path / "one.json", each) or answer(api, each)[1] for each in bases] == [""] * len(bases)
        for _ in range(MUTATIONS):
            document = mutated(rng.choice(bases), rng)
            if words := differ(api, tmp_path / "one.json", document):
                found.append(f"{words}\n{json.dumps(document)}")
    assert not found, "\n\n".join(found[:20])
