"""Prometheus metrics of `aaml autoscale`."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

VERBS = ("buy", "delete")
STATES = ("ready", "starting", "draining", "trouble")
REFUSALS = ("most-nodes", "moves", "kept-pods", "node-pool", "sold-out", "api", "many-troubles")


class AutoscaleMetrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.leads = gauge(
            "leader_election_master_status", "1 for the replica that leads, 0 for one that stands by.", ("name",)
        )
        self.claims = gauge("aaml_autoscale_node_claims", "NodeClaims of ours that exist: what --most-nodes limits.")
        self.most_nodes = gauge("aaml_autoscale_most_nodes", "The limit --most-nodes.")
        self.nodes = gauge(
            "aaml_autoscale_nodes", "Nodes of ours by state: ready, starting, draining or trouble.", ("state",)
        )
        self.waiting = gauge("aaml_autoscale_waiting_pods", "Pods that wait and that a node could be provisioned for.")
        self.orders = counter("aaml_autoscale_orders", "Nodes that were provisioned or terminated.", ("verb",))
        self.refused = counter("aaml_autoscale_refused", "Orders that were refused, by reason.", ("reason",))
        self.promised = gauge("aaml_autoscale_promised", "What is promised, by name; none where nothing is.", ("name",))
        self.late = counter("aaml_autoscale_late_pods", "Pods that waited for longer than promised.")
        self.served = counter("aaml_autoscale_served_pods", "Pods that got a node of ours.")
        self.waited = counter("aaml_autoscale_waited_seconds", "Seconds that these waited.")
        self.evicted = counter("aaml_autoscale_evicted_pods", "Pods that were evicted as their node was drained.")
        self.lead = gauge(
            "aaml_autoscale_lead_seconds", "How long before a pod's promised second a node is provisioned for it."
        )
        self.second = gauge(
            "aaml_autoscale_second_dollars_per_hour",
            "What the last second of waiting costs: a second's price of the nodes provisioned in the last hour.",
        )
        self.eviction = gauge("aaml_autoscale_eviction_dollars", "What evicting a pod counts now.")
        for verb in VERBS:
            self.orders.labels(verb)
        for state in STATES:
            self.nodes.labels(state)
        for reason in REFUSALS:
            self.refused.labels(reason)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)
