"""A cluster that is watched for kube-scheduler's extender."""

from aaml.cluster.objects import Pod
from aaml.kube.view import KubeView
from support.scripted_api import HANG, ScriptedApi, listing, node


def test_a_pod_that_asks_for_devices_is_no_worse_off_with_the_extender():
    """kube-scheduler allocates them: its extender has no say in that."""
    with ScriptedApi() as api:
        for path, items in (("/api/v1/nodes", [node("n1")]), ("/api/v1/pods", []), ("/api/v1/namespaces", [])):
            api.on_list(path, listing(*items))
            api.on_watch(path, [HANG])
        view = KubeView(server=api.server)
        try:
            asks = Pod("p", resource_claims=("gpu",))
            assert view.feasible(asks).tolist() == [True]
            assert view.failures(asks) == {}
        finally:
            view.close()
