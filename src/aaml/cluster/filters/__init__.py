"""The default scheduler's filters over a cluster state: which nodes can take a pod, and why not the others.

    feasible(state, pod).mask        bool [N]
    feasible(state, pod).message()   "0/5 nodes are available: 1 node(s) had untolerated taint(s), 4 Insufficient cpu."

Semantics are those of the plugins that kube-scheduler 1.37 has on by default, a module each. Not among them: dynamic
resource allocation (DRA).
"""

from aaml.cluster.filters.index import FilterIndex
from aaml.cluster.filters.run import feasible, rejecting_plugins
from aaml.cluster.filters.verdict import FILTERS, Diagnosis, Feasibility

__all__ = ["FILTERS", "Diagnosis", "Feasibility", "FilterIndex", "feasible", "rejecting_plugins"]
