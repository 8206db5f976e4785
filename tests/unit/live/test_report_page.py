"""The page of a live run says what its records say, each number counted here by other means."""

import json
import re

import numpy as np

from aaml.live.observers.curves import CurveFiles
from aaml.live.report import Records, write_live_report
from aaml.live.scheduler import Scheduler
from aaml.policies.registry import make_policy
from aaml.sim.threaded import ThreadedCluster
from support import make


def test_the_numbers_of_the_page_are_those_of_the_pods(tmp_path):
    """Two nodes of 4 CPU: 8 pods of 1 CPU fit, and the other 5 find no node, as often as they are tried."""
    cluster = ThreadedCluster(make.nodes(2))
    cluster.do(lambda sim: sim.submit([make.pod(f"p{i}", cpu=1000) for i in range(13)]))
    cluster.end()
    events = tmp_path / "run.jsonl"
    files = CurveFiles(tmp_path / "curves", events, {}, "in-process cluster")
    Scheduler(cluster, make_policy("least-variance"), [files]).run()
    files.close()
    page = write_live_report(events, "test", {}, {}).read_text()
    placed = cluster.do(lambda sim: [each.node_name for each in sim.state.placements.values()])
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    tried = sum(line["kind"] == "unschedulable" for line in lines)
    assert len(placed) == 8
    assert tried >= 5
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "decisions 8 in" in text
    assert "decisions led to 8 assumed" in text
    assert f"attempts that found no node {tried}, of 5 pods" in text
    assert "binds 8 bound" in text
    records = Records.read(events)
    assert records.nodes == {name: placed.count(name) for name in set(placed)}
    p50 = np.percentile([line["latency_s"] for line in lines if line["kind"] == "bind"], 50) * 1000
    assert f"p50 {p50:.1f} ms" in text
