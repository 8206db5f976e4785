"""Selectors of API objects to those of the scheduler."""

from collections.abc import Iterable
from typing import Any, cast

from aaml.cluster import objects
from aaml.kube.objects import wire


def requirements(expressions: Iterable[wire.Expression] | None) -> tuple[objects.Requirement, ...]:
    """Return the expressions of a label or field selector."""
    return tuple(
        objects.Requirement(each.key, cast("Any", each.operator), tuple(each.values or ()))
        for each in expressions or ()
    )


def label_selector(selector: wire.Selector | None) -> objects.LabelSelector | None:
    """Return a label selector; None, which selects nothing, stays None."""
    if selector is None:
        return None
    equal = tuple(objects.Requirement(key, "In", (value,)) for key, value in (selector.match_labels or {}).items())
    return objects.LabelSelector(equal + requirements(selector.match_expressions))


def node_term(term: wire.NodeTerm) -> objects.NodeSelectorTerm:
    """Return a term of a node selector."""
    return objects.NodeSelectorTerm(requirements(term.match_expressions), requirements(term.match_fields))
