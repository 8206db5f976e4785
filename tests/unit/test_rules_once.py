"""Each rule of nodes stands once, and where."""

import ast
from collections import Counter
from importlib import import_module
from pathlib import Path

import aaml

SOURCES = Path(aaml.__file__).parent

RULES = {
    "when a batch of pods closes": "aaml.nodes.karpenter_rules:closes_s",
    "what Karpenter provisions": "aaml.nodes.karpenter_rules:_provision",
    "which nodes Karpenter may disrupt, in which order": "aaml.nodes.karpenter_rules:_candidates",
    "how many may go at once": "aaml.nodes.karpenter_rules:_allowed",
    "what replaces them": "aaml.nodes.karpenter_rules:_offered",
    "whether a move is balanced": "aaml.nodes.karpenter_rules:_is_balanced",
    "whether a plan still holds": "aaml.nodes.karpenter_rules:_still",
    "how Karpenter packs pods": "aaml.nodes.packing_rules:pack",
    "how it packs pods that ask for more than resources": "aaml.nodes.packing:pack",
    "which pods a claim takes": "aaml.nodes.packing_rules:_joins",
    "whether a node is consolidatable": "aaml.nodes.packing_rules:is_busy",
    "what learned nodes buy": "aaml.nodes.learned_rules:_types_for",
    "which nodes they drain": "aaml.nodes.learned_rules:_moves",
    "what they replace": "aaml.nodes.learned_rules:_replacement",
    "whether a pod fits on a node": "aaml.nodes.fit:pod_fits",
    "what is left of nodes": "aaml.nodes.rows:measure_free",
    "which pods are kept": "aaml.nodes.rows:is_kept",
    "what runs up on the bill": "aaml.nodes.meter:run_up",
    "the LP relaxation's price": "aaml.nodes.fluid:fluid_price",
    "how the Cluster Autoscaler grows": "aaml.nodes.cluster_autoscaler_rules:_grown",
    "which nodes it lets go": "aaml.nodes.cluster_autoscaler_rules:_shrink",
    "which nodes the descheduler empties": "aaml.nodes.descheduler_rules:_begin_round",
    "which pod it evicts next": "aaml.nodes.descheduler_rules:_next_pod",
    "how many evictions a budget allows": "aaml.nodes.budgets:evictable",
}
KERNELS = {"inlined", "outlined", "inlined_source", "without_refcount", "with_refcount", "compiled"}
OF_EACH = {"_candidates", "decide", "collect", "is_due", "next_s", "_unplaced"}
"""What Karpenter and learned nodes decide each by rules of their own."""


def test_each_rule_is_where_it_is_said_to_be():
    for rule, place in RULES.items():
        module, _, name = place.partition(":")
        assert hasattr(import_module(module), name), rule


def test_no_kernel_of_nodes_has_a_second_of_its_name():
    """The life of nodes still stands twice: `aaml.sim.supply` on objects, `aaml.episodes.supply` on arrays."""
    kernels = Counter()
    for package in ("nodes", "episodes", "sim", "live", "karpenter"):
        for file in sorted((SOURCES / package).rglob("*.py")):
            tree = ast.parse(file.read_text())
            kernels.update(
                node.name
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef)
                and any(isinstance(each, ast.Name) and each.id in KERNELS for each in node.decorator_list)
            )
    of_nodes = {place.partition(":")[2] for place in RULES.values()}
    assert {name for name in of_nodes - OF_EACH if kernels[name] > 1} == set()
    assert kernels["pack"] == kernels["measure_free"] == 1
