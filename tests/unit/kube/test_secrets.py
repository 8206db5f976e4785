"""A token that opens a cluster is shown nowhere, whatever goes wrong."""

import logging

import pytest

from aaml.errors import UserError
from aaml.kube.cluster import KubeCluster, LiveOptions
from aaml.kube.transport import ApiError, Transport, Unreachable
from support.scripted_api import CUT, ScriptedApi, status, write_kubeconfig

SECRET = "s3cr3t-7f1e"


@pytest.fixture
def kubeconfig(tmp_path):
    return lambda server: write_kubeconfig(tmp_path, server, token=SECRET)


@pytest.mark.parametrize(
    "answer", [(401, status(401, "Unauthorized")), (403, status(403, "Forbidden")), (500, "broken"), (200, CUT)]
)
def test_a_token_is_in_no_error_and_no_log(kubeconfig, caplog, answer):
    caplog.set_level(logging.DEBUG)
    with ScriptedApi() as api:
        api.on("GET", "/api/v1/nodes", answer)
        api.on_list("/api/v1/nodes", answer)
        path = kubeconfig(api.server)
        transport = Transport(path)
        with pytest.raises((ApiError, Unreachable)) as error:
            transport.request("GET", "/api/v1/nodes")
        said = [str(error.value), repr(error.value), repr(transport), str(transport.explain(error.value))]
        with pytest.raises(UserError) as refused:
            KubeCluster.connect("mine", kubeconfig=path, options=LiveOptions(sync_s=5.0))
        said += [str(refused.value), caplog.text]
    assert not any(SECRET in each for each in said)


def test_a_token_is_sent_to_the_server_that_it_is_for(kubeconfig):
    """Else the test above could not fail."""
    with ScriptedApi() as api:
        api.on_list("/api/v1/nodes", {"items": []})
        transport = Transport(kubeconfig(api.server))
        assert SECRET in str(transport._settings.auth_settings())
        transport.request("GET", "/api/v1/nodes")
