"""Who may let `aaml serve` bind pods: nobody without --bind-verb, and beyond loopback who shows who they are."""

import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml
from starlette.testclient import TestClient

from aaml.commands.serve import Args, run
from aaml.errors import UserError
from aaml.kube.view import KubeView
from aaml.serve.app import Access, create_app
from aaml.serve.metrics import Metrics
from support.scripted_api import one_node
from unit.kube.test_rights import Account
from unit.serve.test_requests import BIND, listening
from unit.serve.test_service_app import View, pod_json, service

DEPLOY = Path(__file__).parents[3] / "deploy/kubernetes"


def test_nobody_binds_unless_it_was_asked_for() -> None:
    view = View()
    client = TestClient(create_app(service(view), Metrics()))
    assert client.post("/bind", json=BIND).status_code == 404
    assert view.bound == []
    assert "/bind" not in client.get("/openapi.json").json()["paths"]
    assert client.post("/prioritize", json={"pod": pod_json(), "nodenames": ["n1"]}).status_code == 200


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of the script that ships."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("ours", "another"):
        subprocess.run([str(DEPLOY / "extender-bind/certificates.sh"), str(folder / name)], check=True)
    return folder


def test_a_bind_beyond_loopback_needs_a_token_or_client_certificates(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AAML_TOKEN", raising=False)
    ours = made / "ours"
    with pytest.raises(UserError, match=r"^bind-verb: on 0\.0\.0\.0 everybody .* expected --tls-client-ca FILE"):
        run(Args(bind_verb=True, host="0.0.0.0"))
    with pytest.raises(UserError, match="tls-client-ca: clients show certificates over HTTPS alone"):
        run(Args(bind_verb=True, host="0.0.0.0", tls_client_ca=made / "ours/ca.crt"))
    with pytest.raises(UserError, match=r"tls-client-ca: '.*/none' is not accepted; expected a PEM file"):
        run(Args(tls_cert=ours / "server.crt", tls_key=ours / "server.key", tls_client_ca=made / "none"))
    with pytest.raises(UserError, match="bind-verb: no cluster is watched"):
        run(Args(bind_verb=True, cluster=False))


def test_certificates_that_do_not_work_are_told_before_anything_is_loaded(made: Path, tmp_path: Path) -> None:
    ours, none = made / "ours", tmp_path / "none.pem"
    none.write_text("no certificate")
    for key in (none, ours / "client.key"):
        with pytest.raises(UserError, match=r"^tls-cert, tls-key: .* are no certificate with its key"):
            run(Args(tls_cert=ours / "server.crt", tls_key=key))
    with pytest.raises(UserError, match=r"tls-client-ca: .*none\.pem' is not accepted; expected certificates in PEM"):
        run(Args(tls_cert=ours / "server.crt", tls_key=ours / "server.key", tls_client_ca=none))


def test_only_who_has_a_certificate_of_the_authority_is_let_in(made: Path) -> None:
    view, ours = View(), made / "ours"
    app = create_app(service(view), Metrics(), access=Access(token="secret", certificates=True), binds=True)
    files = {"ssl_certfile": ours / "server.crt", "ssl_keyfile": ours / "server.key", "ssl_ca_certs": ours / "ca.crt"}

    def client(certificate: Path | None) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(ours / "ca.crt"))
        if certificate is not None:
            context.load_cert_chain(certificate / "client.crt", certificate / "client.key")
        return httpx.Client(verify=context, base_url=f"https://127.0.0.1:{port}", timeout=20)

    with listening(app, **files, ssl_cert_reqs=ssl.CERT_OPTIONAL, client_s=20.0) as (_, port):
        with client(None) as nobody:
            assert nobody.get("/healthz").status_code == 200, "the kubelet has no certificate"
            for path in ("/bind", "/score", "/filter", "/prioritize"):
                assert nobody.post(path, json=BIND).status_code == 401
            assert nobody.get("/metrics").status_code == 401
            assert nobody.get("/metrics", headers={"Authorization": "Bearer secret"}).status_code == 200
        with client(made / "another") as stranger, pytest.raises(httpx.TransportError):
            stranger.post("/bind", json=BIND).raise_for_status()
        assert view.bound == []
        with client(ours) as scheduler:
            assert scheduler.post("/bind", json=BIND).json() == {}
            assert scheduler.post("/bind", json=BIND).json() == {}, "and again on the same connection"
    assert view.bound == [("p", "n1")] * 2


def test_the_rights_to_bind_are_asked_for_where_it_binds_and_not_elsewhere() -> None:
    with one_node() as api:
        account = Account(api)
        account.forbidden = {"create pods/binding"}
        KubeView(server=api.server).close()
        with pytest.raises(UserError, match=r"may not create pods/binding; `kubectl apply -k .*/extender-bind`"):
            KubeView(server=api.server, binds=True)


def test_the_certificates_are_for_their_owner_alone(made: Path) -> None:
    names = {path.name: path.stat().st_mode & 0o077 for path in (made / "ours").iterdir()}
    assert names == dict.fromkeys(("ca.crt", "client.crt", "client.key", "server.crt", "server.key"), 0)


def test_the_manifests_bind_only_where_a_certificate_is_asked_for() -> None:
    container = yaml.safe_load((DEPLOY / "extender/deployment.yaml").read_text())["spec"]["template"]["spec"][
        "containers"
    ]
    assert "--bind-verb" not in container[0]["args"]
    patches = yaml.safe_load((DEPLOY / "extender-bind/kustomization.yaml").read_text())["patches"]
    added = [each["value"] for patch in patches for each in yaml.safe_load(patch["patch"])]
    assert "--bind-verb" in added
    assert "--tls-client-ca=/etc/aaml-extender/ca.crt" in added
    extender = yaml.safe_load((DEPLOY / "extender-bind/kube-scheduler-configuration.yaml").read_text())["extenders"][0]
    assert set(extender["tlsConfig"]) == {"caFile", "certFile", "keyFile"}
