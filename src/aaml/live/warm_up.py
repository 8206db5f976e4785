"""Compiling what decisions need before the first one is waited for."""

import logging

from aaml.cluster.filters import feasible
from aaml.cluster.fleet import standard_nodes
from aaml.cluster.metrics import usage
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.cluster.state import ClusterState
from aaml.live.settings import DEFAULT_REWARD
from aaml.policies.registry import make_reward
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Policy

_LOG = logging.getLogger("aaml")


def warm_up(policy: Policy) -> None:
    """Let a policy place a pod on a cluster of two nodes, which compiles its code.

    The first time on a machine this takes half a minute. Pass a copy of the policy that is to decide, because random
    choices advance its seed. A policy that fails here fails on pods too, where that is logged and the fallback decides.
    """
    state, pod = ClusterState(standard_nodes(2)), Pod("warm-up", requests={CPU: 100, MEMORY: 1 << 20})
    mask = feasible(state, pod).mask
    context, reward = Context(state, pod, mask, spec_of(policy)), make_reward(DEFAULT_REWARD)
    node_name = state.names[1]
    try:
        node_index = policy.act(context).node_index
        node_name = node_name if node_index is None else state.names[node_index]
    except Exception as error:  # noqa: BLE001  (nothing is decided yet)
        _LOG.debug("%s failed as it was warmed up", policy.name, exc_info=error)
    reward.before(context)
    state.assume(pod, node_name)
    reward.after(context, state.index[node_name])
    usage(state)
