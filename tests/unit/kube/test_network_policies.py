"""Every Deployment that ships has a NetworkPolicy, and none lets everybody in."""

from pathlib import Path

import pytest
import yaml

from aaml.plugin.export import export

DEPLOY = Path(__file__).parents[3] / "deploy/kubernetes"
FOLDERS = sorted(each.name for each in DEPLOY.iterdir() if (each / "rbac.yaml").is_file())


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    return export("balance-linear", tmp_path_factory.mktemp("export") / "plugin").folder


def documents(folder):
    """Return the objects of a kustomization's own files, patches aside."""
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [each for name in listed for each in yaml.safe_load_all((folder / name).read_text())]


def chosen(policy: dict, labels: dict) -> bool:
    selector = policy["spec"]["podSelector"]["matchLabels"]
    return bool(selector) and selector.items() <= labels.items()


@pytest.mark.parametrize("folder", [*FOLDERS, "plugin"])
def test_the_pods_of_a_deployment_are_reached_at_its_ports_by_those_who_are_named(folder, plugin):
    found = documents(plugin if folder == "plugin" else DEPLOY / folder)
    policies = [each for each in found if each["kind"] == "NetworkPolicy"]
    assert policies, "each folder has one, for whoever runs pods with its account"
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        for rule in policy["spec"]["ingress"]:
            assert rule["from"], "an empty list would let everybody in"
            assert {} not in [selector for peer in rule["from"] for selector in peer.values()]
            assert all(peer.get("ipBlock", {}).get("cidr", "").rpartition("/")[2] != "0" for peer in rule["from"])
            assert rule["ports"]
    for deployment in (each for each in found if each["kind"] == "Deployment" and "selector" in each["spec"]):
        pod = deployment["spec"]["template"]
        (policy,) = [each for each in policies if chosen(each, pod["metadata"]["labels"])]
        assert policy["metadata"].get("namespace") == deployment["metadata"].get("namespace")
        named = {port["name"] for each in found if each["kind"] == "Deployment"
                 for container in each["spec"]["template"]["spec"]["containers"]
                 for port in container.get("ports", ())}  # fmt: skip
        opened = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert opened - {"learner-health"} == named, "a learner beside the plugin is there where one was asked for"
