"""The compiled vector environment against Gymnasium's own, made of single environments."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import ClipReward, DictInfoToList, RecordEpisodeStatistics

from aaml.environments import ENVIRONMENT_ID
from aaml.errors import UserError
from aaml.sim.tasks import TASKS


def make(num_envs=3, **options):
    options = {"task": "seedc", "pods": 12, "threads": 1, **options}
    return gymnasium.make_vec(ENVIRONMENT_ID, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)


def single_ones(num_envs, **options):
    return gymnasium.make_vec(
        ENVIRONMENT_ID, num_envs=num_envs, vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}, **options,
    )  # fmt: skip


def same(ours, theirs, where=""):
    """What ours says is what theirs says, at any depth; masks of presence tell what of theirs counts."""
    if isinstance(theirs, dict):
        absent = {name for name in ours if f"_{name}" in ours and not np.any(ours[f"_{name}"])}
        assert set(ours) - absent - {f"_{name}" for name in absent} == set(theirs), where
        for name in theirs:
            if not name.startswith("_") and f"_{name}" in theirs:
                there = np.asarray(theirs[f"_{name}"])
                assert np.array_equal(ours[f"_{name}"], there), (where, name)
                if isinstance(theirs[name], dict):
                    same(ours[name], theirs[name], f"{where}/{name}")
                else:
                    for row in np.flatnonzero(there):
                        same(ours[name][row], theirs[name][row], f"{where}/{name}")
            elif not name.startswith("_"):
                same(ours[name], theirs[name], f"{where}/{name}")
    else:
        np.testing.assert_array_equal(ours, theirs, where)


@pytest.mark.parametrize(("task", "mode", "options"), [
    ("seedc", "flat", {}), ("fragmentation", "dict", {"nodes": 3}), ("waiting", "flat", {"nodes": 2, "pods": 60}),
    ("seed-a", "dict", {"nodes": 2}), ("balance", "flat", {"max_steps": 7, "lifetimes": True, "lookahead": 2}),
])  # fmt: skip
def test_it_is_gymnasiums_vector_of_single_environments(task, mode, options):
    options = {"task": task, "observation": mode, "pods": 25, **options}
    ours, theirs = make(3, **options), single_ones(3, **options)
    rng = np.random.default_rng(0)
    same(ours.reset(seed=11)[0], theirs.reset(seed=11)[0])
    ends = 0
    for _ in range(90):
        assert np.array_equal(ours.unwrapped.action_masks(), [env.unwrapped.action_masks() for env in theirs.envs])
        actions = np.array([
            rng.choice(np.flatnonzero(mask)) if rng.random() < 0.95 else rng.integers(len(mask))
            for mask in ours.unwrapped.action_masks()
        ])  # fmt: skip
        told, expected = ours.step(actions), theirs.step(actions)
        for index, name in enumerate(("observation", "reward", "terminated", "truncated")):
            same(told[index], expected[index], name)
        same(told[4], expected[4], "info")
        ends += int((told[2] | told[3]).sum())
    assert ends > 2
    assert ours.single_observation_space == theirs.single_observation_space
    assert (ours.action_space, ours.observation_space) == (theirs.action_space, theirs.observation_space)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("mode", ["flat", "dict"])
def test_what_it_says_is_in_its_spaces_and_follows_from_the_seed(task, mode):
    first, again = (make(2, task=task, observation=mode, pods=20, nodes=3) for _ in range(2))
    seen, _ = first.reset(seed=3)
    same(seen, again.reset(seed=3)[0])
    for _ in range(30):
        assert first.observation_space.contains(seen)
        first.action_space.seed(5)
        actions = first.action_space.sample(mask=tuple(first.unwrapped.action_masks().astype(np.int8)))
        seen, rewards, terminated, truncated, _ = first.step(actions)
        same((seen, rewards, terminated, truncated)[1:], again.step(actions)[1:4])
        assert rewards.shape == terminated.shape == truncated.shape == (2,)
    different, _ = again.reset(seed=4)
    assert any(not np.array_equal(a, b) for a, b in zip(*(
        each.values() if isinstance(each, dict) else [each] for each in (different, first.reset(seed=3)[0])
    ), strict=True))  # fmt: skip


def test_episode_statistics_are_recorded():
    envs = RecordEpisodeStatistics(make(2, pods=10))
    envs.reset(seed=1)
    total, lengths = np.zeros(2), []
    for count in range(1, 21):
        _, rewards, _, truncated, infos = envs.step(envs.unwrapped.action_masks().argmax(axis=1))
        total += rewards
        if truncated.any():
            assert np.allclose(infos["episode"]["r"][truncated], total[truncated])
            lengths += infos["episode"]["l"][truncated].tolist()
            total[truncated] = 0.0
        assert truncated.all() == (count % 10 == 0)
    assert lengths == [10] * 4


def test_other_wrappers_take_it():
    envs = DictInfoToList(ClipReward(make(2, observation="dict"), max_reward=0.0))
    _, infos = envs.reset(seed=1)
    assert [info["pending"] for info in infos] == [0, 0]
    assert all(envs.step(np.zeros(2, dtype=int))[1].max() <= 0.0 for _ in range(5))


def test_a_group_shares_their_episodes():
    envs = make(4, group_size=2)
    seen, _ = envs.reset(seed=1)
    assert np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[0], seen[2])


def test_a_reset_without_a_seed_goes_on_with_other_episodes():
    envs = make(1, seed=7)
    first, _ = envs.reset()
    second, _ = envs.reset()
    assert not np.array_equal(first, second)
    assert np.array_equal(first, make(1).reset(seed=7)[0])


@pytest.mark.parametrize("options", [
    {"observation": "graph"}, {"render_mode": "ansi"}, {"topology": "rack"}, {"reward": "gang-rack"}, {"group_size": 2},
    {"invariants": True}, {"task": "nonsense"},
])  # fmt: skip
def test_what_it_cannot_do_is_refused(options):
    with pytest.raises(UserError):
        make(3, **options)
