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
        for verb in VERBS:
            self.orders.labels(verb)
        for state in STATES:
            self.nodes.labels(state)
        for reason in REFUSALS:
            self.refused.labels(reason)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)
