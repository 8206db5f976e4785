"""Kueue's objects on this machine: its webhooks are called on 127.0.0.1, and nothing of it listens elsewhere."""

from pathlib import Path
from typing import Any

from aaml.kueue.objects import configuration, on_loopback


def webhook(kind: str) -> dict[str, Any]:
    client = {"service": {"name": "kueue-webhook-service", "namespace": "kueue-system", "path": "/validate"}}
    return {"kind": kind, "metadata": {"name": "kueue"}, "webhooks": [{"name": "a", "clientConfig": client}]}


def test_the_api_server_finds_the_webhooks_through_a_service_that_names_this_machine() -> None:
    service = {"kind": "Service", "metadata": {"name": "kueue-webhook-service"}, "spec": {"selector": {"a": "b"}}}
    other = {"kind": "Service", "metadata": {"name": "kueue-visibility-server"}, "spec": {}}
    converts = {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"service": {"path": "/convert"}}}}}
    manifests = [
        service, other, webhook("ValidatingWebhookConfiguration"), webhook("MutatingWebhookConfiguration"),
        {"kind": "CustomResourceDefinition", "metadata": {"name": "workloads"}, "spec": converts},
        {"kind": "CustomResourceDefinition", "metadata": {"name": "topologies"}, "spec": {"scope": "Cluster"}},
    ]  # fmt: skip
    found = on_loopback(manifests, 29443)
    assert [each["metadata"]["name"] for each in found] == [
        "kueue-webhook-service", "kueue", "kueue", "workloads", "topologies"
    ]  # fmt: skip
    assert found[0]["spec"] == {"type": "ExternalName", "externalName": "localhost"}
    for each in found[1:3]:
        assert each["webhooks"][0]["clientConfig"]["service"] == {
            "name": "kueue-webhook-service", "namespace": "kueue-system", "path": "/validate", "port": 29443
        }  # fmt: skip
    assert found[3]["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] == 29443
    assert service["spec"] == {"selector": {"a": "b"}}, "what was read stays as it is"


def test_it_listens_on_loopback_alone() -> None:
    settings = configuration(Path("/certificates"), 29443, 28081, 28443)
    assert settings["health"]["healthProbeBindAddress"] == "127.0.0.1:28081"
    assert settings["metrics"]["bindAddress"] == "127.0.0.1:28443"
    assert settings["webhook"] == {"host": "127.0.0.1", "port": 29443, "certDir": "/certificates"}
    assert settings["featureGates"] == {"VisibilityOnDemand": False}, "its aggregated API listens everywhere"
