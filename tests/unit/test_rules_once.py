"""Each rule of nodes stands once, and where."""

import ast
from collections import Counter
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

import aaml
from aaml.nodes.settings import NodeTimes

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
    "what counts of a wait": "aaml.nodes.meter:beyond_target_s",
    "what counts beside the bill": "aaml.nodes.meter:charge",
    "how much later than it did a pod counts as having come": "aaml.scheduling.queue_sort:delayed_s",
    "what runs up on the bill": "aaml.nodes.meter:run_up",
    "the LP relaxation's price": "aaml.nodes.fluid:fluid_price",
    "how the Cluster Autoscaler grows": "aaml.nodes.cluster_autoscaler_rules:_grown",
    "which nodes it lets go": "aaml.nodes.cluster_autoscaler_rules:_shrink",
    "which nodes the descheduler empties": "aaml.nodes.descheduler_rules:_begin_round",
    "which pod it evicts next": "aaml.nodes.descheduler_rules:_next_pod",
    "how many evictions a budget allows": "aaml.nodes.budgets:evictable",
    "in which of several ways at one price a node is launched": "aaml.nodes.life_rules:way_taken",
    "what is drawn of a node": "aaml.nodes.successors:drawn",
    "when a node joins": "aaml.nodes.life_rules:ready_s",
    "when it is seen to change before": "aaml.nodes.life_rules:step_s",
    "from when on a node on its way out may be terminated": "aaml.nodes.life_rules:drained_s",
    "when a refused eviction is tried again": "aaml.nodes.life_rules:retried_s",
    "whether an evicted pod runs on": "aaml.nodes.life_rules:has_grace",
    "when an evicted pod stops": "aaml.nodes.life_rules:stop_s",
    "what is left of its lifetime": "aaml.nodes.life_rules:left_s",
    "when its successor is made": "aaml.nodes.life_rules:recreated_s",
    "whether there is a successor": "aaml.nodes.successors:is_made_again",
    "whether that begins from the start": "aaml.nodes.successors:begins_anew",
    "how long a pod has waited": "aaml.nodes.life_rules:waited_s",
    "what counts as a pod event": "aaml.nodes.life_rules:is_pod_event",
    "until when a pod is kept": "aaml.scheduling.costs:released_s",
    "whether it may be evicted by then": "aaml.scheduling.costs:is_released",
}
LOOKED_AT = {
    "sim/supply.py": {"join_step_s", "failed_try_s", "initialization_spread_s"},
    "episodes/supply.py": {"join_step_s"},
}
"""The life of nodes on objects, and on arrays: times of `NodeTimes` that it hands on, or asks whether they are 0."""
KERNELS = {"inlined", "outlined", "inlined_source", "without_refcount", "with_refcount", "compiled"}
OF_EACH = {"_candidates", "decide", "collect", "is_due", "next_s", "_unplaced"}
"""What Karpenter and learned nodes decide each by rules of their own."""


def test_each_rule_is_where_it_is_said_to_be():
    for rule, place in RULES.items():
        module, _, name = place.partition(":")
        assert hasattr(import_module(module), name), rule


def test_no_kernel_of_nodes_has_a_second_of_its_name():
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


@pytest.mark.parametrize("life", LOOKED_AT)
def test_the_lives_of_nodes_ask_rules_for_times_and_reckon_with_none(life):
    named = [each for each in ast.walk(ast.parse((SOURCES / life).read_text())) if isinstance(each, ast.Attribute)]
    assert {each.attr for each in named} & {each.name for each in fields(NodeTimes)} == LOOKED_AT[life]
    rules = {place.partition(":")[2] for place in RULES.values() if place.startswith("aaml.nodes.life_rules:")}
    assert rules == {each.attr for each in named if ast.unparse(each.value) == "life"} - {"STEPS"}
