"""The pages of features name every feature that there is, in the order of the columns; and what they say is so."""

import re
from pathlib import Path

import pytest

from aaml.policies import gpu_names
from aaml.policies.heuristics.linear import FEATURES, TERMS
from aaml.scheduling.costs import COST_FEATURES
from aaml.scheduling.observation import NODE_FEATURES, PAIR_FEATURES, POD_FEATURES, UPCOMING_FEATURES
from support import make
from support.make import GIB

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("features.md", "features-of-scorers.md")


def tables():
    """The first column of each table of the pages."""
    found = []
    for line in (line for page in PAGES for line in (DOCS / page).read_text(encoding="utf-8").splitlines()):
        if line.startswith(("| feature |", "| term |")):
            found.append([])
        elif row := re.match(r"\| (`\w+`(?:, `\w+`)*) \| \S", line):
            found[-1] += re.findall(r"\w+", row[1])
    return [tuple(each) for each in found]


def test_every_feature_that_aaml_explain_can_name_is_explained():
    observed = [NODE_FEATURES, COST_FEATURES, PAIR_FEATURES, POD_FEATURES, UPCOMING_FEATURES]
    assert tables() == [*observed, gpu_names.FEATURES, gpu_names.POD_INPUTS, FEATURES, TERMS]


def test_what_the_page_says_of_the_scaled_features_is_so():
    """Nodes of 4 cores, 0, 1 and 2 in use: mean 1/4, deviation sqrt(1/24). The pod asks for one core, 1/4 of a node."""
    state = make.cluster(make.nodes(3), used=[(1, 1000, GIB), (2, 2000, 2 * GIB)])
    shown = make.context(state, make.pod("p", 1000, 2 * GIB)).observation
    pairs = dict(zip(PAIR_FEATURES, shown.pairs.T, strict=True))
    deviation = (1 / 24) ** 0.5
    gaps = [-1 / 4, 0.0, 1 / 4]
    assert pairs["cpu_gap_scaled"] == pytest.approx([gap / (deviation + 1 / 4) for gap in gaps])
    assert pairs["cpu_variance_growth"] == pytest.approx([40 * 1 / 4 * gap for gap in gaps])
    assert pairs["cpu_gap"] == pytest.approx([8 * gap for gap in gaps])
    assert pairs["variance_rank"] == pytest.approx([0.0, 0.5, 1.0])
    pod = dict(zip(POD_FEATURES, shown.pod, strict=True))
    assert (pod["cpu"], pod["memory"], pod["cpu_mean"]) == pytest.approx((1 / 4, 1 / 4, 1 / 4))
    assert pod["cpu_spread"] == pytest.approx(deviation)
