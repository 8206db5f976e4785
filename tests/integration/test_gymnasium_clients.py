"""The environment with the clients it is made for: Gymnasium's and SB3's checkers, MaskablePPO, vectors."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.env_match import check_environments_match
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.vec_env import DummyVecEnv

import aaml
from aaml.environments import ENVIRONMENT_ID
from aaml.errors import UserError
from aaml.sim.sb3 import Sb3VecEnv
from aaml.sim.tasks import TASKS

MODES = ("flat", "dict", "graph")


def make(task="seedc", **options):
    return gymnasium.make(ENVIRONMENT_ID, task=task, **{"pods": 40, **options})


def rollout(env, seed, policy_seed=3):
    """Take random feasible actions until the episode ends; returns all that the environment said."""
    rng = np.random.default_rng(policy_seed)
    observation, info = env.reset(seed=seed)
    steps = [(observation, 0.0)]
    while True:
        action = rng.choice(np.flatnonzero(info["action_mask"]))
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append((observation, reward))
        if terminated or truncated:
            return steps, (terminated, truncated), info


@pytest.mark.parametrize(
    ("task", "mode"), [*((task, "flat") for task in TASKS), ("balance", "dict"), ("seedc", "graph")]
)
def test_gymnasium_checker(task, mode):
    check_env(make(task, observation=mode, render_mode="ansi").unwrapped)


@pytest.mark.parametrize("mode", ["flat", "dict"])
@pytest.mark.filterwarnings("ignore:Your observation .* has an unconventional shape")
def test_stable_baselines_checker(mode):
    sb3_check_env(make("balance", observation=mode).unwrapped, warn=True)


@pytest.mark.parametrize("task", TASKS)
def test_same_seed_gives_the_same_episode_and_every_observation_is_in_its_space(task):
    env = make(task)
    first, end, info = rollout(env, seed=7)
    again, end_again, info_again = rollout(make(task), seed=7)
    assert len(first) == len(again)
    assert all(np.array_equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(first, again, strict=True))
    assert (end, info["metrics"]) == (end_again, info_again["metrics"])
    assert all(env.observation_space.contains(observation) for observation, _ in first)
    other, _, _ = rollout(env, seed=8)
    assert not np.array_equal(first[1][0], other[1][0])


def test_environments_with_one_seed_match_step_by_step():
    check_environments_match(make(), make(), num_steps=60, seed=1)


def test_end_of_an_episode():
    _, (terminated, truncated), info = rollout(make("balance"), seed=1)
    assert (terminated, truncated) == (False, True)  # pods come and go: cut off
    assert info["metric"] == info["metrics"]["mean_variance"]
    assert info["metrics"]["arrived"] == 40
    _, ended, info = rollout(make("fragmentation", pods=150), seed=1)
    assert ended == (True, False)  # nothing leaves: over
    assert info["metrics"]["bound"] + info["metrics"]["pending"] == info["metrics"]["arrived"]
    _, ended, _ = rollout(make("balance", max_steps=5), seed=1)
    assert ended == (False, True)


def test_infeasible_action_places_nothing_and_costs():
    env = make("fragmentation", nodes=8, pods=200)
    _, info = env.reset(seed=0)
    while info["action_mask"].all():
        _, _, terminated, _, info = env.step(int(np.argmax(info["action_mask"])))
        assert not terminated
    placed = len(env.unwrapped.cluster.state.placements)
    _, reward, _, _, info = env.step(int(np.argmin(info["action_mask"])))
    assert (reward, info["infeasible"]) == (-1.0, True)
    assert len(env.unwrapped.cluster.state.placements) == placed


def test_graph_holds_the_same_numbers_as_the_arrays():
    arrays, _ = make("balance", observation="dict").reset(seed=2)
    graph, _ = make("balance", observation="graph").reset(seed=2)
    features, pairs = arrays["nodes"].shape[1], arrays["pairs"].shape[1]
    assert np.array_equal(graph.nodes[:10, :features], arrays["nodes"])
    assert np.array_equal(graph.nodes[:10, features : features + pairs], arrays["pairs"])
    assert np.array_equal(graph.nodes[10, features + pairs :], arrays["pod"])
    # A star: each of the ten nodes is linked with the hub, both ways.
    assert sorted(map(tuple, graph.edge_links)) == sorted([(i, 10) for i in range(10)] + [(10, i) for i in range(10)])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_vector_environments(vectorization, mode):
    # Graphs of any size do not fit into the shared memory between processes.
    options = {"vector_kwargs": {"shared_memory": False}} if (vectorization, mode) == ("async", "graph") else {}
    envs = gymnasium.make_vec(
        ENVIRONMENT_ID,
        num_envs=2,
        vectorization_mode=vectorization,
        task="seedc",
        pods=10,
        observation=mode,
        **options,
    )
    try:
        _, info = envs.reset(seed=5)
        ended = np.zeros(2, dtype=bool)
        for _ in range(14):
            actions = np.array([np.flatnonzero(mask)[0] if mask.any() else 0 for mask in info["action_mask"]])
            _, rewards, terminated, truncated, info = envs.step(actions)
            assert rewards.shape == (2,)
            ended |= terminated | truncated
        assert ended.all()
    finally:
        envs.close()


def test_maskable_ppo_trains_and_never_leaves_the_mask():
    env = make("fragmentation", nodes=6, pods=60)
    model = MaskablePPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=2, seed=1, device="cpu")
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(256)
    assert any(not (a == b).all() for a, b in zip(before, model.policy.parameters(), strict=True))
    observation, _ = env.reset(seed=3)
    for _ in range(20):
        mask = get_action_masks(env)
        action, _ = model.predict(observation, action_masks=mask, deterministic=True)
        assert mask[action]
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            break
    assert np.isfinite(evaluate_policy(model, env, n_eval_episodes=2)[0])


def test_a_vector_of_stable_baselines_is_the_compiled_one():
    """SB3's own vector over single clusters, with the same seeds, says the same in each step."""
    options = {"task": "seedc", "pods": 12}
    compiled = Sb3VecEnv(2, **options)
    single = DummyVecEnv([lambda: gymnasium.make(ENVIRONMENT_ID, **options)] * 2)
    compiled.seed(5), single.seed(5)
    assert np.array_equal(compiled.reset(), single.reset())
    ended = 0
    for _ in range(30):
        masks = np.stack(compiled.env_method("action_masks"))
        assert np.array_equal(masks, np.stack(single.env_method("action_masks")))
        actions = masks.argmax(axis=1)
        seen, reward, over, infos = compiled.step(actions)
        again, reward_again, over_again, infos_again = single.step(actions)
        assert np.array_equal(seen, again)
        assert np.array_equal(reward, reward_again)
        assert np.array_equal(over, over_again)
        for row in np.flatnonzero(over):
            ended += 1
            assert np.array_equal(infos[row]["terminal_observation"], infos_again[row]["terminal_observation"])
            assert infos[row]["TimeLimit.truncated"] == infos_again[row]["TimeLimit.truncated"]
            assert infos[row]["metric"] == infos_again[row]["metric"]
    assert ended >= 4
    assert compiled.env_method("action_masks", indices=1)[0].shape == masks[1].shape
    compiled.close()


def test_maskable_ppo_learns_in_the_compiled_vector_environment():
    vector = Sb3VecEnv(32, task="seedc", pods=60, seed=4)
    model = MaskablePPO("MlpPolicy", vector, n_steps=64, batch_size=512, learning_rate=1e-3, gamma=0.5, seed=1)
    before = _earned(model)
    model.learn(20 * 32 * 64)
    vector.close()
    assert _earned(model) > before


@pytest.mark.parametrize(("learner", "mode"), [(DQN, "flat"), (PPO, "dict"), (MaskablePPO, "flat")])
def test_a_model_of_stable_baselines_is_evaluated_as_it_is_and_says_what_it_cannot(learner, mode):
    env = make("seedc", observation=mode, lookahead=0)
    model = learner("MlpPolicy" if mode == "flat" else "MultiInputPolicy", env, seed=1)
    task = aaml.task("seedc", pods=12)
    results = aaml.evaluate([model, "random"], task, seeds=[1000], progress=False)
    assert set(results.frame()["policy"]) == {learner.__name__, "random"}
    nodes = len(task.build(1000).state)
    with pytest.raises(UserError, match=rf"policy mine: was trained on clusters of {nodes} nodes"):
        aaml.evaluate({"mine": model}, aaml.task("seedc", nodes=nodes + 1, pods=5), seeds=[1000], progress=False)


def test_a_model_with_a_memory_is_refused():
    model = RecurrentPPO("MlpLstmPolicy", make("seedc", lookahead=0))
    with pytest.raises(UserError, match=r"policy RecurrentPPO: expected a model .* without a memory"):
        aaml.evaluate([model, "random"], "seedc", seeds=[1000])


def _earned(model):
    """Return the mean reward of a decision, by the model's best choices on episodes that it did not learn from."""
    envs = gymnasium.make_vec(
        ENVIRONMENT_ID, num_envs=16, vectorization_mode="vector_entry_point", task="seedc", pods=60
    )
    seen, _ = envs.reset(seed=900_000)
    earned = []
    for _ in range(60):
        action, _ = model.predict(seen, action_masks=envs.unwrapped.action_masks(), deterministic=True)
        seen, reward, _, _, _ = envs.step(action)
        earned.append(reward)
    envs.close()
    return float(np.mean(earned))


@pytest.mark.parametrize(("task", "nodes"), [("fragmentation", 6), ("balance", 100)])
def test_pictures(task, nodes):
    env = make(task, nodes=nodes, render_mode="rgb_array")
    _, info = env.reset(seed=1)
    empty = env.render()
    for _ in range(20):
        _, _, _, _, info = env.step(int(np.argmax(info["action_mask"])))
    full = env.render()
    assert full.dtype == np.uint8
    assert full.ndim == 3
    assert full.shape[2] == 3
    assert (full != empty).any()


def test_text_shows_each_node_and_the_next_pod():
    env = make("seedc", render_mode="ansi")
    env.reset(seed=1)
    lines = env.render().splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["node-0", "node-1", "node-2"]
    assert lines[-1].startswith("next: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "golf"}, "task: 'golf' is not accepted; expected one of balance"),
        ({"observation": "tensor"}, "observation: 'tensor'"),
        ({"reward": "fun"}, "reward: 'fun' is not accepted; expected one of balance"),
        ({"nodes": 0}, "nodes: 0"),
        ({"render_mode": "human"}, "render_mode: 'human'"),
        ({"topology": "ring"}, "topology: 'ring'"),
    ],
)
def test_bad_arguments_are_named(options, message):
    from aaml.sim.env import ClusterEnv

    with pytest.raises(UserError, match=message):
        ClusterEnv(**options)


def test_lookahead_lengthens_the_observation_by_three_numbers_a_pod():
    short, long = make("balance", lookahead=0), make("balance", lookahead=4)
    assert long.observation_space.shape[0] - short.observation_space.shape[0] == 12
