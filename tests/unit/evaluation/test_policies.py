"""A policy comes from its name or its file with everything that it looks at."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aaml.cluster.gpu import GpuRequest
from aaml.cluster.objects import Pod
from aaml.errors import UserError
from aaml.evaluation.policies import is_model, load, load_policy, split_nodes
from aaml.learning.agents import make_agent
from aaml.learning.config import AGENTS, LIVE, QTable
from aaml.learning.linear import save_linear
from aaml.learning.qtable import QTableAgent
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.heuristics.linear import FEATURES, TERMS, LinearPolicy
from aaml.policies.kube_scores.profile import profile_file, read_profile
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.observation import ObservationSpec
from aaml.training.settings import TrainConfig
from support.training import train

SHIPPED = Path(__file__).parents[3] / "models"
EXPECTED = [Pod(f"{i}", requests={"cpu": 4000}, gpu=GpuRequest(1, 500, frozenset({"T4"}))) for i in range(3)]
EVERYTHING = ObservationSpec(lookahead=2, lifetimes=True, racks=True, fragmentation=FragmentMeter.of(EXPECTED))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dqn", "acgnn"])
def test_a_network_looks_at_the_same_things_after_it_was_saved(kind, tmp_path):
    path, *_ = make_agent(LIVE[kind], observation_spec=EVERYTHING, seed=3).save(str(tmp_path), "x")
    policy = load_policy(path)
    assert spec_of(policy) == EVERYTHING
    assert spec_of(policy).fragmentation.typical.kinds[0].models == {"T4"}


def test_training_with_lifetimes_is_served_with_lifetimes(tmp_path):
    config = TrainConfig(
        agent=AGENTS["dqn"], task="balance", nodes=(3,), pods=30, steps=60, envs=2, lifetimes=True, teacher_steps=40,
        teacher_passes=1, validate_every=60, validation_episodes=1,
    )  # fmt: skip
    trainer, _ = train(config, tmp_path / "run")
    assert spec_of(load_policy(str(trainer.folder.model_path()))).lifetimes
    plain, _ = train(replace(config, lifetimes=False), tmp_path / "plain")
    assert not spec_of(load_policy(str(plain.folder.model_path()))).lifetimes


def test_a_linear_scorer_and_a_table_keep_what_they_look_at(tmp_path):
    weights = np.zeros((len(TERMS), len(FEATURES)))
    save_linear(LinearPolicy(weights, observation_spec=EVERYTHING), tmp_path / "linear.json")
    assert spec_of(load_policy(str(tmp_path / "linear.json"))) == EVERYTHING
    path, *_ = QTableAgent(QTable(), observation_spec=ObservationSpec(2)).save(str(tmp_path), "x")
    assert spec_of(load_policy(path)).lookahead == 2


def test_the_file_says_what_it_holds_whatever_it_is_called(tmp_path):
    names = {
        "DQN_Model_dqn_balance_s0.pth": "dqn",
        "Linear_linear_compress_s1.json": "anything",
        "openb_linear.npz": "anything",
    }
    for name, expected in names.items():
        copy = tmp_path / "anything"
        copy.write_bytes((SHIPPED / name).read_bytes())
        assert is_model(str(copy))
        assert load(copy, expected=EXPECTED).name == expected


def test_a_file_that_is_no_model_is_told_in_one_line(tmp_path):
    for name, content in {"a.pth": b"torn", "b.json": b'{"format": "else"}', "c.npz": b"PK\x03\x04"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            load_policy(str(tmp_path / name))
    with pytest.raises(UserError, match="exists"):
        load_policy(str(tmp_path / "none.pth"))


def test_what_follows_has_to_be_at_hand_to_be_shown():
    from aaml.cluster.objects import Node
    from aaml.cluster.state import ClusterState
    from aaml.scheduling.observation import Context

    state = ClusterState([Node("a", {"cpu": 1000, "memory": 1 << 30, "pods": 10})])
    context = Context(state, Pod("p", lifetime_s=99.0), np.array([True]))
    assert context.observation_by(ObservationSpec(lifetimes=True)).pod[7] == 1.0
    assert context.observation.pod[7] == 0.0
    with pytest.raises(ValueError, match="lookahead of 2"):
        context.observation_by(ObservationSpec(lookahead=2))


def test_a_critics_file_is_no_policy_and_its_actors_file_is_named(tmp_path):
    actor, critic = sorted(make_agent(LIVE["acdqn"], seed=3).save(str(tmp_path), "x"))
    assert (Path(actor).name, Path(critic).name) == ("Actor_x.pth", "Critic_x.pth")
    load_policy(actor)
    with pytest.raises(UserError, match=r"expected a file that chooses, Actor_x\.pth"):
        load_policy(critic)


def test_paths_may_have_a_plus_and_a_number_sign(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    for folder in ("c++", "a#1"):
        Path(folder).mkdir()
        Path(folder, "s.yaml").write_text(f"{head}profiles: [{{schedulerName: x}}, {{schedulerName: 'y'}}]\n")
        Path(folder, "pool.yaml").write_text("kind: NodePool\n")
    kube = "kube-scheduler:c++/s.yaml"
    assert split_nodes(kube) == (kube, "")
    assert split_nodes(f"{kube}+c++/pool.yaml") == (kube, "c++/pool.yaml")
    assert split_nodes(f"{kube}#x+learned") == (f"{kube}#x", "learned")
    assert split_nodes(f"{kube}#y+c++/pool.yaml") == (f"{kube}#y", "c++/pool.yaml")
    assert split_nodes("first-fit+c++/pool.yaml") == ("first-fit", "c++/pool.yaml")
    assert split_nodes("first-fit+gone.yaml") == ("first-fit", "gone.yaml")
    assert split_nodes("first-fit+learned") == ("first-fit", "learned")
    for spec, name in (("kube-scheduler:a#1/s.yaml", "x"), ("kube-scheduler:a#1/s.yaml#y", "y"), (f"{kube}#y", "y")):
        assert profile_file(spec).is_file()
        assert read_profile(spec).scheduler_name == name
