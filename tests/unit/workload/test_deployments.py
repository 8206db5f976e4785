"""Deployments as people meet them: drawn within bounds, valid for Kubernetes, the same after a trip through CSV."""

import re

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.files import RowWriter
from aaml.workload.deployments import (
    COLUMNS,
    Deployment,
    DeploymentShape,
    RandomDeployments,
    read_deployments,
    read_shapes,
    split_steps,
)

MIB = 1024**2
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")  # RFC 1123 label


def draw(count, seed=1, **settings):
    source = RandomDeployments(np.random.default_rng(seed), **settings)
    return [source.draw() for _ in range(count)]


def test_drawn_deployments_are_within_the_documented_bounds():
    drawn = draw(500)
    assert {deployment.pod_count for deployment in drawn} == set(range(5, 16))
    assert all(0 < deployment.cpu_milli <= 1000 for deployment in drawn)
    assert all(0 < deployment.memory_bytes <= 2048 * MIB for deployment in drawn)
    assert all(deployment.cpu_limit_milli >= deployment.cpu_milli for deployment in drawn)
    assert all(deployment.memory_limit_bytes >= deployment.memory_bytes for deployment in drawn)


def test_names_are_unique_and_valid_with_what_kubernetes_adds():
    names = [deployment.name for deployment in draw(2000)]
    assert len(set(names)) == 2000
    assert all(LABEL.fullmatch(name) and len(f"{name}-67cd76646c-m58b2") <= 63 for name in names)


def test_a_seed_gives_the_same_stream_and_another_seed_another():
    assert draw(20, seed=4) == draw(20, seed=4)
    assert draw(20, seed=4) != draw(20, seed=5)


def test_a_tag_changes_names_only():
    plain, tagged = draw(20, seed=4), draw(20, seed=4, tag="mine1")
    assert tagged[0].name == "web-mine1-1"
    assert {deployment.pod_count for deployment in tagged} <= set(range(5, 16))
    assert plain[0].name != tagged[0].name


def test_a_mixture_follows_its_weights():
    drawn = draw(3000, shapes=[DeploymentShape(name="rare", weight=1.0), DeploymentShape(name="often", weight=3.0)])
    often = sum(deployment.name.startswith("often") for deployment in drawn)
    assert 2250 - 150 < often < 2250 + 150  # six standard deviations of a binomial(3000, 3/4) are 142


def test_the_general_lifetime_is_for_shapes_without_one():
    shapes = [DeploymentShape(name="own", lifetime_s=(5.0, 6.0)), DeploymentShape(name="none")]
    for deployment in draw(50, shapes=shapes, lifetime_s=60.0):
        if deployment.name.startswith("own"):
            assert 5.0 <= deployment.lifetime_s <= 6.0
        else:
            assert deployment.lifetime_s == 60.0


def test_a_file_that_was_written_plays_back_the_same(tmp_path):
    drawn = draw(30, shapes=[DeploymentShape(lifetime_s=(1.0, 99.0)), DeploymentShape(name="b", limit_factor=0.0)])
    writer = RowWriter(tmp_path / "data.csv", COLUMNS)
    for deployment in drawn:
        writer.add(deployment.row("create"))
    writer.add(drawn[3].row("delete"))
    writer.close()
    steps = read_deployments(tmp_path / "data.csv")
    assert [deployment for deployment, action in steps if action == "create"] == drawn
    assert steps[-1] == (drawn[3], "delete")


SEED_HEADER = "name,pod_count,cpu_request,cpu_limit,mem_request,mem_limit,action\n"


def test_a_file_without_lifetimes_is_read_too(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(SEED_HEADER + "web,7,250m,500m,128Mi,256Mi,create\n")
    assert read_deployments(path) == [(Deployment("web", 7, 250, 128 * MIB, 500, 256 * MIB), "create")]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("Web_1,7,250m,,128Mi,,create", ["column name", "'Web_1'", "a-z, 0-9"]),
        ("web,many,250m,,128Mi,,create", ["column pod_count", "'many'"]),
        ("web,7,250x,,128Mi,,create", ["column cpu_request", "'250x'"]),
        ("web,7,250m,,128Mi,,start", ["column action", "'start'", "create or delete"]),
        ("web,7,250m,100m,128Mi,,create", ["'web'", "cpu_limit is below the request"]),
        ("web,7,250m,,128Mi,,delete", ["'web'", "deleted before it is created"]),
        ("web,1,1,,1Mi,,create\nweb,1,1,,1Mi,,create", ["'web'", "created twice"]),
    ],
)
def test_a_bad_row_is_told(tmp_path, row, words):
    path = tmp_path / "data.csv"
    path.write_text(SEED_HEADER + row + "\n")
    with pytest.raises(UserError) as error:
        read_deployments(path)
    assert "data.csv" in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_file_of_nothing_is_refused(tmp_path):
    (tmp_path / "data.csv").write_text(SEED_HEADER)
    with pytest.raises(UserError, match="has no deployments"):
        read_deployments(tmp_path / "data.csv")


def test_shapes_take_ranges_and_single_amounts(tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text(
        "name,weight,replicas,cpu_request,mem_request,lifetime_s,gpu_count,gpu_milli\n"
        "web,3,5..10,100m..1,64Mi,,,\n"
        "train,1,2,4,8Gi,30..60,1,500\n"
    )
    web, train = read_shapes(path)
    assert (web.weight, web.replicas, web.cpu_milli, web.memory_bytes) == (3.0, (5, 10), (100, 1000), (64 * MIB,) * 2)
    assert web.lifetime_s is None
    assert train.lifetime_s == (30.0, 60.0)
    assert (train.gpu.count, train.gpu.milli) == (1, 500)
    path.write_text("name,cpu_request\nweb,1..100m\n")
    with pytest.raises(UserError, match="from the smaller to the larger"):
        read_shapes(path)


def test_the_mixture_that_ships_is_valid():
    from pathlib import Path

    shapes = read_shapes(Path(__file__).parents[3] / "data" / "shapes_mixed.csv")
    assert [shape.name for shape in shapes] == ["web", "api", "cache", "batch"]


def test_steps_are_grouped_without_changing_their_order():
    a, b, c = (Deployment(name, 1, 1, 1) for name in "abc")
    steps = [(a, "create"), (b, "create"), (a, "delete"), (b, "delete"), (c, "create")]
    waves = list(split_steps(steps, 8))
    assert [step for wave in waves for step in wave] == steps
    assert [len(wave) for wave in waves] == [2, 1, 1, 1]


def test_pods_belong_to_their_deployment():
    pods = Deployment("web", 3, 100, MIB).pods("mine", uid_prefix="1/")
    assert len({pod.uid for pod in pods}) == 3
    assert {pod.owner for pod in pods} == {"ReplicaSet/web"}
    assert {pod.scheduler_name for pod in pods} == {"mine"}
