"""Stable-Baselines3: the compiled clusters in lockstep as its vector environment, and its models as policies.

    from sb3_contrib import MaskablePPO

    import aaml
    from aaml.sim.sb3 import Sb3VecEnv

    model = MaskablePPO("MlpPolicy", Sb3VecEnv(64, task="balance", nodes=10), n_steps=128, batch_size=1024)
    model.learn(400_000)
    print(aaml.evaluate([model, "kube-scheduler"], aaml.task("balance", nodes=10)))

It needs the extra `sb3`.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv

from aaml.errors import OtherSizeError, UserError
from aaml.policies.heuristics import ScorePolicy
from aaml.scheduling.observation import Context
from aaml.sim.env import pack
from aaml.sim.vector_env import ClusterVectorEnv

Indices = int | Iterable[int] | None


class Sb3VecEnv(VecEnv):
    """`ClusterVectorEnv` as a `VecEnv`: flat observations, action masks, the next episode in the step that ends one.

    `infos` of a step that ends an episode have `terminal_observation`, `TimeLimit.truncated` and `metric`, the task's.
    Args are those of `ClusterVectorEnv`. Raises `UserError` as it does.
    """

    def __init__(self, num_envs: int, task: str = "balance", nodes: int | None = None, **options: Any) -> None:
        self._envs = ClusterVectorEnv(num_envs, task, nodes, **options)
        self._actions = np.zeros(num_envs, dtype=np.int64)
        super().__init__(num_envs, self._envs.single_observation_space, self._envs.single_action_space)

    def reset(self) -> Any:
        """Begin an episode everywhere and return what is seen, float32 [B, ...]."""
        first = self._seeds[0]  # cluster i has `first` + i, in both interfaces
        self._reset_seeds()
        return self._envs.reset(seed=first)[0]

    def step_async(self, actions: npt.NDArray[np.int64]) -> None:
        """Keep the nodes that the pods go to, by index, int64 [B]."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, npt.NDArray[np.float32], npt.NDArray[np.bool_], list[dict[str, Any]]]:
        """Place every pod; return what is seen, rewards [B], which episodes ended [B], and B infos."""
        seen, reward, terminated, truncated, info = self._envs.step(self._actions)
        over = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in over]
        for row in np.flatnonzero(over):
            infos[row] = {
                "terminal_observation": info["final_obs"][row],
                "TimeLimit.truncated": bool(truncated[row] and not terminated[row]),
                "metric": float(info["final_info"]["metric"][row]),
            }
        return seen, reward.astype(np.float32), over, infos

    def close(self) -> None:
        """End the threads."""
        self._envs.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute, the same for every cluster."""
        return [getattr(self._envs, attr_name)] * len(self._rows(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Raise AttributeError: compiled clusters have no attributes of their own."""
        raise AttributeError(f"{attr_name} of clusters {self._rows(indices)} cannot be set to {value!r}")

    def env_method(self, method_name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        """Return what a method says of each cluster; `action_masks` is the one that sb3-contrib calls."""
        every = getattr(self._envs, method_name)(*args, **kwargs)
        return [every[row] for row in self._rows(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Indices = None) -> list[bool]:  # noqa: ARG002  (none is)
        """Return that no cluster is wrapped."""
        return [False] * len(self._rows(indices))

    def _rows(self, indices: Indices) -> list[int]:
        return list(self._get_indices(indices))


def sb3_policy(model: BaseAlgorithm | BasePolicy, name: str = "") -> ScorePolicy:
    """Return a model of Stable-Baselines3 or sb3-contrib, or its `policy`, as one that takes the node it likes best.

    That is by the logits of an actor (PPO, A2C, MaskablePPO) or by the values of a DQN. Without a `name` it is called
    by the algorithm. It knows clusters of the number of nodes that it was trained with. Raises `UserError` for a model
    of another environment than `aaml/Cluster-v0` with flat observations or a dict, and for one with a memory; deciding
    does for another number of nodes.
    """
    network: Any = getattr(model, "policy", model)
    name = name or type(model).__name__
    actions: Any = getattr(network, "action_space", None)
    seen_space: Any = getattr(network, "observation_space", None)
    is_actor, is_critic = hasattr(network, "get_distribution"), hasattr(network, "q_net")
    if not isinstance(actions, spaces.Discrete) or not (is_actor or is_critic) or hasattr(network, "lstm_actor"):
        raise UserError(f"policy {name}: expected a model that chooses one of several nodes, without a memory")
    size, mode = int(actions.n), "dict" if isinstance(seen_space, spaces.Dict) else "flat"
    network.set_training_mode(False)

    def score(context: Context) -> npt.NDArray[np.float64]:
        seen, workers = context.observation, context.state.capacity  # without the control plane
        own = replace(seen, nodes=seen.nodes[workers], pairs=seen.pairs[workers], mask=seen.mask[workers])
        packed = pack(mode, own)  # type: ignore[arg-type]
        if workers.sum() != size or (mode == "flat" and packed.shape != seen_space.shape):
            raise OtherSizeError(
                f"policy {name}: was trained on clusters of {size} nodes ({seen_space.shape} numbers), and this one "
                f"has {workers.sum()}"
            )
        tensor, _ = network.obs_to_tensor(packed)
        liked = network.q_net(tensor) if is_critic else network.get_distribution(tensor).distribution.logits
        scores = np.full(len(workers), -np.inf)
        scores[workers] = liked.detach().cpu().numpy()[0]
        return scores

    return ScorePolicy(name, score)
