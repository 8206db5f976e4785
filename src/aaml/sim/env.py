"""ClusterEnv: the simulated cluster as a Gymnasium environment, `gymnasium.make("aaml/Cluster-v0", task="balance")`."""

from typing import Any, Literal, get_args

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from aaml.errors import bad_value
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.registry import make_reward
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.loop import whole_run
from aaml.scheduling.observation import NO_POD, NODE_FEATURES, PAIR_FEATURES, Context, Observation, ObservationSpec
from aaml.scheduling.ports import Decision
from aaml.scheduling.rewards import RewardOptions, nothing_placed
from aaml.sim.cluster import SimCluster
from aaml.sim.render import picture, text
from aaml.sim.tasks import find_task

ObservationMode = Literal["flat", "dict", "graph"]
FEATURE_LIMIT = 10.0
EPISODE_SEEDS = 2**31


class ClusterEnv(gymnasium.Env[Any, np.int64]):
    """Place one pod after the other on the nodes of a simulated cluster.

    ## Action
    `Discrete(N)`: the index of the node for the pod. Only nodes where the mask is 1 are feasible; the mask is in
    `info["action_mask"]` (int8 [N]) and from `action_masks()` (bool [N], as sb3-contrib asks for it). An infeasible
    action places nothing, earns -1, sets `info["infeasible"]`, and the pod is tried again after the next event.

    ## Observation
    Dimensionless numbers of about unit size, clipped to -10 ... 10 (`aaml.scheduling.observation` lists the features:
    F of a node, K of the pod on a node, P of the pod and the k pods that follow it).

    ==========  ==================================================================================================
    "flat"      `Box` float32 [N F + N K + P]: nodes, then pairs (both node by node), then the pod
    "dict"      `Dict`: `nodes` [N, F], `pairs` [N, K], `pod` [P] float32, `mask` int8 [N]
    "graph"     `Graph`: vertices are the N nodes and then the hubs (control plane, racks), features float32
                [F + K + P]: a node's F and K with P zeros; a hub's F + K zeros with the pod's P; edges both ways
                (a Gymnasium graph with edges wants features on them: all are 1). `AsyncVectorEnv` takes it with
                `shared_memory=False`
    ==========  ==================================================================================================

    When an episode is over, the observation is that of the cluster without a pod (all masked).

    ## Reward
    The task's, or `reward`: a name, `file.py:name` or a weighted sum (see `aaml.scheduling.rewards`); about unit size.

    ## Episode
    It begins with an empty cluster and the first pod, and takes as many steps as there are pods to place, and retries.
    Between steps the clock (seconds) moves to the next moment at which a pod can be placed. `truncated`: the last pod
    of a workload whose pods come and go has arrived, the cluster would go on; or `max_steps` was reached.
    `terminated`: nothing can happen any more. Then `info["metrics"]` has everything the episode can be judged by,
    `info["metric"]` the task's own.

    ## Info
    `action_mask`, `time_s`, `pending` (pods that wait behind this one), `infeasible`.

    Args
    ----
    task: balance, varied, compress, fragmentation, waiting, seedc, seedc-compress, seed-a (`aaml.sim.tasks`)
    nodes, pods: size of the cluster and of an episode; None: the task's
    trace: short name of an openb pod list whose requests take the place of the synthetic ones
    observation: "flat", "dict" or "graph"
    lookahead: how many following pods are shown; None: the task's
    lifetimes: whether a pod's lifetime is shown
    reward: None: the task's
    topology: the graph of "graph": "star" or "rack"
    max_steps: end the episode (truncated) after so many steps
    seed: of the first episode when `reset` gets none; later ones follow from it
    invariants: check the cluster's sums at every step (slow)
    render_mode: "ansi" (a table) or "rgb_array" (a picture, uint8 [H, W, 3])
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012  (as the base class has it)

    def __init__(
        self,
        task: str = "balance",
        nodes: int | None = None,
        *,
        trace: str | None = None,
        pods: int | None = None,
        observation: ObservationMode = "flat",
        lookahead: int | None = None,
        lifetimes: bool = False,
        reward: str | None = None,
        topology: Literal["star", "rack"] = "star",
        max_steps: int | None = None,
        seed: int | None = None,
        invariants: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if observation not in get_args(ObservationMode):
            raise bad_value("observation", observation, f"one of {', '.join(get_args(ObservationMode))}")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise bad_value("render_mode", render_mode, "ansi, rgb_array or None")
        if topology not in ("star", "rack"):
            raise bad_value("topology", topology, "star or rack")
        self.render_mode = render_mode
        self.task = find_task(task)
        self._arguments: dict[str, Any] = {"nodes": nodes, "pods": pods, "trace": trace, "invariants": invariants}
        self._mode = observation
        self.reward = reward or self.task.reward
        self._max_steps = max_steps
        self._episodes = whole_run(continuing=self.task.continuing)
        self._first_seed = seed
        probe = self.task.build(0, **self._arguments)
        if probe.elastic:
            raise bad_value("task", task, "one whose nodes stay: spaces have one size")
        has_gpus = bool(probe.state.gpu_count.any())
        meter = FragmentMeter.of(self.task.expected(trace)) if has_gpus else None
        self._reward_options = RewardOptions(meter)
        shown = self.task.lookahead if lookahead is None else lookahead
        self.observation_spec = ObservationSpec(shown, lifetimes, topology == "rack", meter)
        make_reward(self.reward, self._reward_options)  # a wrong name is told here rather than at the first reset
        self._nodes = len(probe.state)
        self.action_space = spaces.Discrete(self._nodes)
        self.observation_space = _space(observation, self._nodes, self.observation_spec.pod_size)
        self._cycle: SchedulingCycle | None = None
        self._context: Context | None = None
        self._steps = 0

    @property
    def cluster(self) -> SimCluster:
        """The cluster of the current episode. Raises RuntimeError before the first reset."""
        return self._running.cluster  # type: ignore[return-value]

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002  (there are none)
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the same seed gives the same episode."""
        if seed is None and self._first_seed is not None:
            seed = self._first_seed
        self._first_seed = None
        super().reset(seed=seed)
        cluster = self.task.build(int(self.np_random.integers(EPISODE_SEEDS)), **self._arguments)
        self._cycle = SchedulingCycle(cluster, make_reward(self.reward, self._reward_options), self.observation_spec)
        self._steps = 0
        self._next_decision()
        return self._observe(), self._info()

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Place the pod on a node. Raises RuntimeError when no episode is under way."""
        context = self._context
        if context is None:
            raise RuntimeError("no pod waits for a decision: call reset() first")
        node_index = int(action)
        if not 0 <= node_index < self._nodes:
            raise ValueError(f"action {node_index} is outside Discrete({self._nodes})")
        feasible = bool(context.mask[node_index])
        outcome = self._running.finish(context, Decision(node_index if feasible else None))
        reward = outcome.reward if feasible else nothing_placed()
        self.cluster.results()  # nobody else takes them, and they would pile up
        self._steps += 1
        self._next_decision()
        following = None if self._context is None else self._context.pod
        ending = self._episodes(context.pod, following)
        terminated = ending == "terminated"
        truncated = ending == "truncated" or (self._max_steps is not None and self._steps >= self._max_steps)
        info = self._info() | {"infeasible": not feasible}
        if terminated or truncated:
            metrics = dict(self.cluster.metrics())
            info |= {"metrics": metrics, "metric": metrics[self.task.metric]}
        return self._observe(), reward, terminated, truncated, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return bool [N], the feasible nodes for the current pod; all False when the episode is over."""
        return np.zeros(self._nodes, dtype=np.bool_) if self._context is None else self._context.mask.copy()

    def render(self) -> Any:
        """Return the cluster as text ("ansi") or uint8 [H, W, 3] ("rgb_array"); None without a render mode."""
        pod = None if self._context is None else self._context.pod
        if self.render_mode == "ansi":
            return text(self.cluster, pod)
        return picture(self.cluster, pod) if self.render_mode == "rgb_array" else None

    # ---- inside ------------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> SchedulingCycle:
        if self._cycle is None:
            raise RuntimeError("the environment has no episode yet: call reset() first")
        return self._cycle

    def _next_decision(self) -> None:
        """Go on to the next pod that fits somewhere; none is left when the context is None."""
        cycle = self._running
        while (pod := cycle.cluster.next_pod(0.0)) is not None:
            self._context = cycle.begin(pod)
            if self._context is not None:
                return
        self._context = None

    def _info(self) -> dict[str, Any]:
        cluster = self.cluster
        return {
            "action_mask": self.action_masks().astype(np.int8),
            "time_s": cluster.now_s(),
            "pending": cluster.pending_count(),
        }

    def _observe(self) -> Any:
        if self._context is not None:
            seen = self._context.observation
        else:
            state = self.cluster.state
            seen = self.observation_spec.observe(state, NO_POD, np.zeros(len(state), dtype=np.bool_))
        return pack(self._mode, seen)


def _box(*shape: int) -> spaces.Box:
    return spaces.Box(-FEATURE_LIMIT, FEATURE_LIMIT, shape, np.float32)


def _space(mode: ObservationMode, nodes: int, pod_size: int) -> spaces.Space[Any]:
    features, pairs = len(NODE_FEATURES), len(PAIR_FEATURES)
    if mode == "flat":
        return _box(nodes * (features + pairs) + pod_size)
    if mode == "dict":
        return spaces.Dict(
            {
                "nodes": _box(nodes, features),
                "pairs": _box(nodes, pairs),
                "pod": _box(pod_size),
                "mask": spaces.MultiBinary(nodes),
            }
        )
    return spaces.Graph(_box(features + pairs + pod_size), edge_space=spaces.Box(0.0, 1.0, (1,), np.float32))


def _clip(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.clip(values, -FEATURE_LIMIT, FEATURE_LIMIT)


def pack(mode: ObservationMode, seen: Observation) -> Any:
    """Return what is seen in the form of an observation mode."""
    if mode == "flat":
        return _clip(np.concatenate([seen.nodes.ravel(), seen.pairs.ravel(), seen.pod]))
    if mode == "dict":
        return {
            "nodes": _clip(seen.nodes),
            "pairs": _clip(seen.pairs),
            "pod": _clip(seen.pod),
            "mask": seen.mask.astype(np.int8),
        }
    graph = seen.graph
    own = seen.nodes.shape[1] + seen.pairs.shape[1]
    vertices = np.zeros((graph.vertex_count, own + len(seen.pod)), dtype=np.float32)
    vertices[: graph.node_count, :own] = np.hstack([seen.nodes, seen.pairs])
    vertices[graph.node_count :, own:] = seen.pod
    links = graph.edge_index.T.copy()
    return spaces.GraphInstance(_clip(vertices), np.ones((len(links), 1), dtype=np.float32), links)
