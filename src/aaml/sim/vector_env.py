"""ClusterVectorEnv: many clusters in lockstep as a Gymnasium vector environment, in compiled code.

envs = gymnasium.make_vec("aaml/Cluster-v0", num_envs=256, vectorization_mode="vector_entry_point", task="balance")
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from aaml.episodes.batch import BatchedEnv, BatchedObservation, Ended
from aaml.episodes.plan import Plan
from aaml.errors import bad_value
from aaml.sim.env import EPISODE_SEEDS, FEATURE_LIMIT, ClusterEnv, ObservationMode
from aaml.sim.task_episodes import TaskEpisodes

Infos = dict[str, Any]


class ClusterVectorEnv(VectorEnv[Any, npt.NDArray[np.int64], npt.NDArray[Any]]):
    """`ClusterEnv` many times over: the same actions, observations ("flat" and "dict"), rewards and ends, to the bit.

    An episode that ends is followed by the next in the same step (`AutoresetMode.SAME_STEP`); what was seen last and
    the metrics are in `infos["final_obs"]` and `infos["final_info"]`. With one seed it is `SyncVectorEnv` of
    `ClusterEnv`s with that autoreset mode. `action_masks()` is bool [B, N].

    Args are those of `ClusterEnv`, without graphs, racks, rendering and invariants, and
    ----
    num_envs: B, the number of clusters
    group_size: neighbours that play the same episodes: what they do differently is all that their returns differ by
    threads: None: as many as there are cores
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  (as the base class)

    def __init__(
        self,
        num_envs: int = 1,
        task: str = "balance",
        nodes: int | None = None,
        *,
        observation: ObservationMode = "flat",
        max_steps: int | None = None,
        seed: int | None = None,
        group_size: int = 1,
        threads: int | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        if observation == "graph":
            raise bad_value("observation", observation, "flat or dict in a vector environment")
        if render_mode is not None:
            raise bad_value("render_mode", render_mode, "None in a vector environment")
        if options.get("invariants"):
            raise bad_value("invariants", True, "False in a vector environment")
        if num_envs < 1 or group_size < 1 or num_envs % group_size:
            raise bad_value("num_envs", num_envs, f"a multiple of group_size, {group_size}, at least 1")
        self._one = ClusterEnv(task, nodes, observation=observation, **options)
        self._nodes = nodes
        self._episodes = TaskEpisodes(self._one.task, options.get("pods"), options.get("trace"))
        self._flat = observation == "flat"
        self.num_envs = num_envs
        self.single_observation_space = self._one.observation_space
        self.single_action_space = self._one.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._group_size, self._first_seed = group_size, seed
        self._rngs: list[np.random.Generator] = []
        self._batch = BatchedEnv(
            self._plan,
            num_envs // group_size,
            group_size=group_size,
            observation_spec=self._one.observation_spec,
            reward=self._one.reward,
            expected=self._one.observation_spec.fragmentation,  # type: ignore[arg-type]  # a FragmentMeter, or None
            max_steps=max_steps,
            threads=threads,
        )

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002  (there are none)
    ) -> tuple[Any, Infos]:
        """Begin an episode everywhere; environment i has the seed `seed` + i, or the i-th (with groups: group i)."""
        if seed is None:
            seed, self._first_seed = self._first_seed, None
        groups = self.num_envs // self._group_size
        seeds = [None if seed is None else seed + i for i in range(groups)] if not isinstance(seed, Sequence) else seed
        if len(seeds) != groups:
            raise ValueError(f"{len(seeds)} seeds for {groups} environments")
        fresh = [seeding.np_random(each)[0] if each is not None or not self._rngs else None for each in seeds]
        self._rngs = [new or old for new, old in zip(fresh, self._rngs or fresh, strict=True)]  # type: ignore[misc]
        return self._pack(self._batch.reset()), self._info(np.ones(self.num_envs, dtype=np.bool_))

    def step(self, actions: npt.NDArray[np.int64]) -> tuple[Any, Any, Any, Any, Infos]:
        """Place every pod; see `ClusterEnv.step`. Raises RuntimeError before the first reset."""
        step = self._batch.step(actions)
        over = step.terminated | step.truncated
        infos = self._info(np.ones(self.num_envs, dtype=np.bool_))
        infos |= {"infeasible": step.infeasible & ~over, "_infeasible": ~over}
        if step.ended:
            infos |= self._final(step.ended, over, step.infeasible)
        return self._pack(self._batch.seen), step.reward.copy(), step.terminated, step.truncated, infos

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return bool [B, N], the feasible nodes for the current pods."""
        return self._batch.seen.mask.copy()

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002  (as the base class has it)
        """End the threads."""
        self._batch.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _plan(self, group: int, _number: int) -> Plan:
        return self._episodes.plan(int(self._rngs[group].integers(EPISODE_SEEDS)), self._nodes)

    def _pack(self, seen: BatchedObservation) -> Any:
        """Return copies of what is seen, of one row or of all, in the observation mode's form."""
        nodes, pairs, pod = (
            np.clip(array, -FEATURE_LIMIT, FEATURE_LIMIT) for array in (seen.nodes, seen.pairs, seen.pod)
        )
        if not self._flat:
            return {"nodes": nodes, "pairs": pairs, "pod": pod, "mask": seen.mask.astype(np.int8)}
        rows = pod.shape[:-1]
        return np.concatenate([nodes.reshape(*rows, -1), pairs.reshape(*rows, -1), pod], axis=-1)

    def _info(self, there: npt.NDArray[np.bool_]) -> Infos:
        values = {
            "action_mask": self._batch.seen.mask.astype(np.int8),
            "time_s": self._batch.now_s,
            "pending": self._batch.pending,
        }
        return values | {f"_{name}": there.copy() for name in values}

    def _final(self, ended: Sequence[Ended], over: npt.NDArray[np.bool_], infeasible: npt.NDArray[np.bool_]) -> Infos:
        """Return how episodes ended, in the layout of Gymnasium's own vector environments."""
        last = np.full(self.num_envs, None, dtype=object)
        masks = np.zeros((self.num_envs, int(self._one.action_space.n)), dtype=np.int8)  # type: ignore[attr-defined]
        time_s, pending = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.int64)
        metrics = {name: np.zeros(self.num_envs) for name in ended[0].metrics}
        for each in ended:
            last[each.row] = self._pack(each.last)
            masks[each.row], time_s[each.row], pending[each.row] = each.last.mask, each.now_s, each.pending
            for name, value in each.metrics.items():
                metrics[name][each.row] = value
        inside: Infos = {
            "action_mask": masks,
            "time_s": time_s,
            "pending": pending,
            "infeasible": infeasible & over,
            "metric": metrics[self._one.task.metric].copy(),
            "metrics": metrics | {f"_{name}": over.copy() for name in metrics},
        }
        inside |= {f"_{name}": over.copy() for name in tuple(inside)}
        return {"final_obs": last, "_final_obs": over.copy(), "final_info": inside, "_final_info": over.copy()}
