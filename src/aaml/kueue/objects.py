"""Kueue's objects, changed for a process of this machine, and the configuration that the process reads."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

NAMESPACE = "kueue-system"
SERVICE, SECRET = "kueue-webhook-service", "kueue-webhook-server-cert"
WEBHOOKS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}
"""What calls it, by kind: where they stay behind, no pod and no Job can be made."""


def on_loopback(manifests: Iterable[Mapping[str, Any]], webhook_port: int) -> list[dict[str, Any]]:
    """Return the objects of a Kueue whose webhooks are at a port of 127.0.0.1.

    The API server looks up its Service, which names this machine, and verifies the certificate for the Service: so
    Kueue's own certificates stay as they are. All other Services lead to pods that are not there, and are left out.
    """
    found: list[dict[str, Any]] = []
    for manifest in manifests:
        each = deepcopy(dict(manifest))
        kind = each["kind"]
        if kind == "Service":
            if each["metadata"]["name"] != SERVICE:
                continue
            each["spec"] = {"type": "ExternalName", "externalName": "localhost"}
        for client in _clients(each):
            client["service"]["port"] = webhook_port
        found.append(each)
    return found


def _clients(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return who is called, of the webhooks of an object."""
    if manifest["kind"] in WEBHOOKS:
        return [webhook["clientConfig"] for webhook in manifest["webhooks"]]
    conversion = manifest.get("spec", {}).get("conversion", {}).get("webhook")
    return [conversion["clientConfig"]] if conversion else []


def configuration(
    certificates: Path,
    webhook_port: int,
    health_port: int,
    metrics_port: int,
    features: Mapping[str, bool] | None = None,
) -> dict[str, Any]:
    """Return Kueue's configuration: its defaults, but on 127.0.0.1, alone, for Jobs and pods that name a queue.

    `features` are feature gates besides. Its API of pending workloads is off: that is at every address of the machine.
    """
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health_port}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics_port}"},
        "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 1000, "burst": 2000},
        "internalCertManagement": {"enable": True, "webhookServiceName": SERVICE, "webhookSecretName": SECRET},
        "manageJobsWithoutQueueName": False,
        "integrations": {"frameworks": ["batch/job", "pod"]},
        "featureGates": {"VisibilityOnDemand": False, **(features or {})},
    }
