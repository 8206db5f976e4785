"""What of our policies the plugin can be, and what it is told of them."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aaml.cluster.objects import GpuRequest, Pod
from aaml.errors import UserError
from aaml.evaluation.policies import load_policy
from aaml.evaluation.zoo import zoo
from aaml.learning.networks import NetworkSpec, make_network
from aaml.learning.policy import NetworkPolicy
from aaml.plugin.export import export_weights
from aaml.plugin.source import EMBEDDED, source_files
from aaml.plugin.weights import weights, write_weights
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.heuristics.linear import FEATURES, TERMS, LinearPolicy
from aaml.policies.registry import make_policy
from aaml.scheduling.lifetimes import KnownLifetimes
from aaml.scheduling.observation import ObservationSpec


def _network(**seen: Any) -> NetworkPolicy:
    spec = ObservationSpec(**seen)
    network = make_network(NetworkSpec(encoder="mlp", head="actor", width=8, lookahead=spec.lookahead), seed=0)
    return NetworkPolicy(network, observation_spec=spec)


def test_a_weights_file_says_what_it_is_of_and_has_a_checksum_of_its_policy(tmp_path: Path) -> None:
    source = tmp_path / "model.pth"
    source.write_bytes(b"a model")
    write_weights(_network(), tmp_path / "weights.json", name="ours", source=source)
    text = (tmp_path / "weights.json").read_text(encoding="utf-8")
    content = json.loads(text)
    assert content["model"] == {"name": "ours", "agent": "acdqn", "sha256": hashlib.sha256(b"a model").hexdigest()}
    policy = text[text.index('"policy": ') + len('"policy": ') : text.rindex("}")]
    assert content["sha256"] == hashlib.sha256(policy.encode()).hexdigest()


def test_weights_are_the_float32_of_the_network_to_the_bit() -> None:
    policy = _network()
    told = json.loads(weights(policy))["policy"]["layers"]
    for name, values in policy.weights()["network"].items():
        found = told["weights" if values.ndim == 2 else "biases"][name]
        np.testing.assert_array_equal(np.array(found, dtype=np.float32), values)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"lookahead": 2}, "the pods that follow"),
        ({"racks": True}, "racks"),
        ({"lifetimes": True}, "true lifetimes"),
        ({"lifetime_model": KnownLifetimes()}, "true lifetimes"),
        ({"costs": True}, "what nodes cost"),
    ],
)
def test_a_policy_that_reads_what_kube_scheduler_does_not_know_is_refused_in_one_line(
    seen: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        weights(_network(**seen), name="ours")
    assert "\n" not in str(caught.value)
    assert "ours" in str(caught.value)


@pytest.mark.parametrize("name", ["random", "round-robin"])
def test_a_policy_without_a_twin_in_go_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}: it has no twin in Go"):
        weights(make_policy(name))


def test_fragments_are_weighed_by_pods_that_ask_for_gpus_or_not_at_all() -> None:
    with pytest.raises(UserError, match="expected-pods: fgd weighs fragments by pods like those to come"):
        weights(make_policy("fgd"))


def test_the_true_lifetimes_are_no_part_of_a_plugin() -> None:
    with pytest.raises(UserError, match="clairvoyant: it reads true lifetimes"):
        weights(make_policy("clairvoyant"))


def test_the_typical_pods_travel_with_fgd_the_most_frequent_ones_first() -> None:
    share = Pod("share", requests={"cpu": 2000}, gpu=GpuRequest(1, 500, frozenset({"T4", "G2"})))
    pods = [replace(share, name=f"share-{i}") for i in range(3)] + [Pod("plain", requests={"cpu": 1000})]
    told = json.loads(weights(make_policy("fgd", PolicyOptions(expected=pods))))["policy"]
    assert (told["kind"], told["name"], told["expected_pods"]["population"]) == ("devices", "fgd", 4)
    assert told["expected_pods"]["kinds"] == [
        {"cpu_milli": 2000, "gpu_milli": 500, "gpu_count": 1, "models": ["G2", "T4"], "frequency": 3},
        {"cpu_milli": 1000, "gpu_milli": 0, "gpu_count": 0, "models": [], "frequency": 1},
    ]


def test_numbers_that_are_not_finite_are_refused() -> None:
    numbers = np.zeros((len(TERMS), len(FEATURES)))
    numbers[0, 0] = np.nan
    with pytest.raises(UserError, match="not all finite"):
        weights(LinearPolicy(numbers))


def test_the_modules_files_are_those_that_go_builds_without_weights() -> None:
    files = source_files()
    assert {Path("go.mod"), Path("go.sum"), Path("main.go"), Path("internal/aaml/plugin.go")} <= files.keys()
    assert EMBEDDED not in files


def test_a_plugins_weights_stand_for_the_policy_that_they_were_exported_from(tmp_path: Path) -> None:
    """`aaml explain --policy plugin/weights.json` says what the plugin does."""
    shipped = next(name for name, each in zoo().items() if each.path.suffix == ".json")
    for spec, name in ((shipped, load_policy(shipped).name), ("most-allocated", "most-allocated")):
        path = tmp_path / f"{spec}.json"
        export_weights(spec, path)
        assert load_policy(str(path)).name == name


def test_weights_of_a_file_that_does_not_ship_name_it(tmp_path: Path) -> None:
    path, own = tmp_path / "weights.json", tmp_path / "own.json"
    shipped = next(each.path for each in zoo().values() if each.path.suffix == ".json")
    own.write_bytes(shipped.read_bytes() + b"\n")  # other bytes, the same model
    export_weights(str(own), path)
    with pytest.raises(UserError, match=r"expected the file that these weights were exported from \(own, SHA-256 "):
        load_policy(str(path))


def test_weights_replace_weights_and_no_other_file(tmp_path):
    path = tmp_path / "types.json"
    path.write_text('[{"name": "compute-1"}]')
    with pytest.raises(UserError, match=r"out: .*types.json' is not accepted; expected a new file, or one of weights"):
        export_weights("most-allocated", path)
    assert path.read_text() == '[{"name": "compute-1"}]'
    path.unlink()
    for name in ("most-allocated", "least-allocated"):
        export_weights(name, path)
        assert json.loads(path.read_text())["model"]["name"] == name
