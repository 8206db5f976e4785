"""What the real Karpenter is told, in the words of its own objects and flags."""

from pathlib import Path

import pytest

from aaml.cluster.objects import Requirement
from aaml.errors import UserError
from aaml.karpenter.pool import Pool
from aaml.nodes.settings import KarpenterSettings
from aaml.sim.bill import BILL_TASKS

MINE = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: mine, annotations: {aaml.dev/batch-idle-duration: 5s}}
spec:
  limits: {cpu: "100"}
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand]}
      - {key: node.kubernetes.io/instance-type, operator: In, values: [compute-4]}
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 1m30s, budgets: [{nodes: 20%}, {nodes: "3"}]}
"""


def test_a_node_pool_says_what_the_simulators_settings_say() -> None:
    settings = KarpenterSettings(
        consolidation_policy="WhenEmpty", consolidate_after_s=90.0, budgets=("20%", "3"), batch_idle_duration_s=2.5,
        batch_max_duration_s=30.0, instance_types=("compute-4",), spot_to_spot_consolidation=True,
    )  # fmt: skip
    pool = Pool(settings, registration_delay_s=40.0)
    assert pool.node_class()["spec"] == {"nodeRegistrationDelay": "40s"}
    spec = pool.node_pool()["spec"]
    assert spec["disruption"] == {
        "consolidationPolicy": "WhenEmpty", "consolidateAfter": "90s", "budgets": [{"nodes": "20%"}, {"nodes": "3"}],
    }  # fmt: skip
    requirements = spec["template"]["spec"]["requirements"]
    assert {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["compute-4"]} in requirements
    assert {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]} in requirements
    assert pool.environment() == {
        "BATCH_IDLE_DURATION": "2.5s", "BATCH_MAX_DURATION": "30s", "FEATURE_GATES": "SpotToSpotConsolidation=true",
    }  # fmt: skip


def test_ones_own_node_pool_keeps_all_but_its_class(tmp_path: Path) -> None:
    (tmp_path / "nodepool.yaml").write_text(MINE, encoding="utf-8")
    pool = Pool.read(tmp_path / "nodepool.yaml")
    found = pool.node_pool()
    assert found["metadata"]["name"] == "mine"
    assert found["spec"]["limits"] == {"cpu": "100"}
    assert found["spec"]["disruption"]["consolidateAfter"] == "90s"
    assert found["spec"]["template"]["spec"]["nodeClassRef"]["kind"] == "KWOKNodeClass"
    assert pool.settings.requirements == (Requirement("karpenter.sh/capacity-type", "In", ("spot", "on-demand")),)
    assert pool.environment()["BATCH_IDLE_DURATION"] == "5s"


def test_five_times_faster_everything_takes_a_fifth() -> None:
    settings = BILL_TASKS["bill"].autoscaler  # 15 s, batches of 1 s to 10 s
    assert isinstance(settings, KarpenterSettings)
    pool = Pool(settings, speed=5)
    assert pool.node_class()["spec"]["nodeRegistrationDelay"] == "4s"
    assert pool.node_pool()["spec"]["disruption"]["consolidateAfter"] == "3s"
    assert pool.environment()["BATCH_IDLE_DURATION"] == "0.2s"
    assert pool.environment()["BATCH_MAX_DURATION"] == "2s"


def test_nodes_that_never_go() -> None:
    pool = Pool(KarpenterSettings(consolidate_after_s=None))
    assert pool.node_pool()["spec"]["disruption"]["consolidateAfter"] == "Never"


def test_what_karpenter_cannot_be_told_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"consolidate_after_s: 12 is not accepted; expected a multiple of 5 s"):
        Pool(KarpenterSettings(consolidate_after_s=12.0), speed=5)
    with pytest.raises(UserError, match=r"consolidate_after_s: 0\.5 is not accepted; expected a multiple of 1 s"):
        Pool(KarpenterSettings(consolidate_after_s=0.5))
    with pytest.raises(UserError, match=r"validation_s: 3\.0 .*15, which is a constant of the real Karpenter"):
        Pool(KarpenterSettings(validation_s=3.0))
    with pytest.raises(UserError, match=r"speed: 7 .*one of 1, 5"):
        Pool(speed=7)
