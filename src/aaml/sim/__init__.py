"""The in-process cluster with a virtual clock, its compiled engine and the Gymnasium environment `aaml/Cluster-v0`."""

import gymnasium

ENVIRONMENT_ID = "aaml/Cluster-v0"

# Gymnasium finds environments in its registry only, so that importing this package has to put it there.
if ENVIRONMENT_ID not in gymnasium.registry:
    gymnasium.register(
        ENVIRONMENT_ID,
        entry_point="aaml.sim.env:ClusterEnv",
        vector_entry_point="aaml.sim.vector_env:ClusterVectorEnv",
    )
