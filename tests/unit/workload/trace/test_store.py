"""A trace's folder: what was flushed is read again, whatever happened to the writer."""

import gzip
import os
import signal
import subprocess
import sys

import pytest

from aaml.cluster.objects import (
    Affinity,
    GpuRequest,
    LabelSelector,
    Node,
    NodeSelectorTerm,
    Pod,
    PodAffinityTerm,
    PodGroup,
    Requirement,
    Taint,
    Toleration,
    TopologySpread,
    WeightedPodAffinityTerm,
)
from aaml.errors import UserError
from aaml.workload.trace.events import (
    Began,
    Listed,
    NodeGone,
    NodeSeen,
    PodBound,
    PodEnded,
    PodSeen,
    from_line,
    to_line,
    waiting,
)
from aaml.workload.trace.store import TraceWriter, is_trace, read_events

EVERYTHING = Pod(
    "web-1", "shop", uid="u1", requests={"cpu": 250, "memory": 1 << 30}, gpu=GpuRequest(1, 500, frozenset({"T4"})),
    labels={"app": "web"}, priority=7, node_selector={"disk": "ssd"},
    affinity=Affinity(
        required_nodes=(NodeSelectorTerm((Requirement("disk", "In", ("ssd",)),)),),
        required_anti_pods=(PodAffinityTerm("zone", None),),
        preferred_pods=(WeightedPodAffinityTerm(-5, PodAffinityTerm("zone", LabelSelector(), frozenset({"shop"}))),),
    ),
    tolerations=(Toleration("gpu", "Exists"),),
    spread=(TopologySpread(1, "zone", LabelSelector((Requirement("app", "Exists"),)), hard=False),),
    owner="ReplicaSet/web", created_s=5.0,
)  # fmt: skip
NODE = Node("n1", {"cpu": 4000, "pods": 110}, {"disk": "ssd"}, (Taint("gpu"),), gpu_count=2, gpu_model="T4")
EVENTS = (
    Began(at=10.0, source="here"), NodeSeen(at=10.0, node=NODE), Listed(at=10.0), PodSeen(at=10.25, pod=EVERYTHING),
    PodBound(at=10.5, uid="u1", node_name="n1", gpus=(1,)), PodEnded(at=20.125, uid="u1", how="succeeded"),
    NodeGone(at=30.0, name="n1"),
)  # fmt: skip


def write(folder, events):
    with TraceWriter(folder) as writer:
        for event in events:
            writer.write(event)


def test_what_was_written_is_read_again_to_the_last_field(tmp_path):
    write(tmp_path / "trace", EVENTS)
    assert tuple(read_events(tmp_path / "trace")) == EVENTS


def test_usual_values_take_no_room_and_come_back_as_the_very_objects_that_stand_for_nothing():
    """Filters ask by identity whether a pod has affinity or volumes at all."""
    assert to_line(PodSeen(at=1.0, pod=Pod("a"))) == (
        b'{"event":"pod","at":1.0,"pod":{"name":"a","uid":"default/a"}}\n'
    )


def test_a_recorded_pod_does_not_wait_for_a_group_that_nobody_records():
    assert waiting(Pod("a", group=PodGroup("g", seen=False), node_name="n")) == Pod("a")
    assert waiting(Pod("a", group=PodGroup("g", 2))) == Pod("a", group=PodGroup("g", 2))


def test_a_gang_that_a_trace_names_is_the_pods_group():
    line = b'{"event":"pod","at":1.0,"pod":{"name":"a","uid":"default/a","gang":"g","gang_size":3}}'
    assert from_line(line, "line 1").pod == Pod("a", group=PodGroup("g", 3))


def test_a_pod_without_affinity_has_none_after_it_was_read(tmp_path):
    from aaml.cluster.objects import NO_AFFINITY, NO_GPU, NO_VOLUMES

    write(tmp_path, [Began(at=0.0), PodSeen(at=1.0, pod=Pod("a"))])
    _, seen = read_events(tmp_path)
    assert seen.pod.affinity is NO_AFFINITY
    assert seen.pod.volumes is NO_VOLUMES
    assert seen.pod.gpu is NO_GPU


def test_a_second_writer_goes_on_after_the_first_and_touches_nothing_of_its_parts(tmp_path):
    write(tmp_path, EVENTS[:3])
    before = (tmp_path / "part-000001.jsonl.gz").read_bytes()
    write(tmp_path, EVENTS[3:])
    assert (tmp_path / "part-000001.jsonl.gz").read_bytes() == before
    assert tuple(read_events(tmp_path)) == EVENTS


def test_a_part_that_is_large_enough_is_followed_by_the_next(tmp_path, caplog):
    with TraceWriter(tmp_path, part_bytes=1) as writer:
        for event in EVENTS:
            writer.write(event)
            writer.flush()
    assert len(list(tmp_path.glob("part-*"))) == len(EVENTS)
    assert tuple(read_events(tmp_path)) == EVENTS
    assert not caplog.messages
    (tmp_path / "part-000002.jsonl.gz").unlink()
    assert tuple(read_events(tmp_path)) == (EVENTS[0], *EVENTS[2:])
    assert caplog.messages == [f"{tmp_path}: no part 2 is there: what was recorded in it is missing"]


@pytest.mark.parametrize("lost", [1, 8, 30])
def test_a_flush_that_was_cut_off_costs_its_own_events_and_no_others(tmp_path, lost, caplog):
    with TraceWriter(tmp_path) as writer:
        for event in EVENTS[:4]:
            writer.write(event)
        writer.flush()
        for event in EVENTS[4:]:
            writer.write(event)
    (part,) = tmp_path.glob("part-*")
    part.write_bytes(part.read_bytes()[:-lost])
    assert tuple(read_events(tmp_path)) == EVENTS[:4]
    assert caplog.messages == [f"{part}: is cut off: what came after its last whole piece is left out"]
    write(tmp_path, EVENTS[4:])
    assert tuple(read_events(tmp_path)) == EVENTS


def test_a_writer_that_is_killed_loses_nothing_of_what_it_flushed(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from aaml.workload.trace.events import NodeGone\nfrom aaml.workload.trace.store import TraceWriter\n"
        "writer = TraceWriter(Path(sys.argv[1]))\n"
        "for number in range(1000):\n    writer.write(NodeGone(at=number, name=str(number)))\n"
        "    writer.flush()\n    print(number, flush=True)\n    time.sleep(0.001)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    told = [process.stdout.readline() for _ in range(20)]
    os.kill(process.pid, signal.SIGKILL)
    told += process.communicate()[0].splitlines(keepends=True)
    flushed = int(told[-1])
    names = [event.name for event in read_events(tmp_path)]
    assert names == [str(number) for number in range(len(names))]
    assert len(names) in {flushed + 1, flushed + 2}
    write(tmp_path, [NodeGone(at=0.0, name="after")])
    assert [event.name for event in read_events(tmp_path)] == [*names, "after"]


def test_two_writers_at_once_are_refused(tmp_path):
    with TraceWriter(tmp_path), pytest.raises(UserError, match=r"process \d+ .* writes there"):
        TraceWriter(tmp_path)
    TraceWriter(tmp_path).close()


def test_a_writer_that_took_nothing_leaves_what_was_there_before(tmp_path):
    TraceWriter(tmp_path / "new").close()
    TraceWriter(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    assert tmp_path.is_dir()


def test_no_room_is_told_and_what_was_there_stays_whole(tmp_path, monkeypatch):
    writer = TraceWriter(tmp_path)
    writer.write(EVENTS[0])
    writer.flush()
    monkeypatch.setattr(os, "fsync", lambda _file: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    writer.write(EVENTS[1])
    with pytest.raises(UserError, match="No space left on device"):
        writer.flush()
    assert tuple(read_events(tmp_path)) == EVENTS[:1]
    monkeypatch.undo()
    writer.close()  # there is room again
    assert tuple(read_events(tmp_path)) == EVENTS[:2]


def test_what_is_no_trace_is_told_with_its_name(tmp_path):
    assert not is_trace(tmp_path)
    with pytest.raises(UserError, match="aaml record"):
        list(read_events(tmp_path))
    write(tmp_path, EVENTS)
    (part,) = tmp_path.glob("part-*")
    content = bytearray(part.read_bytes())
    content[40] ^= 0xFF
    part.write_bytes(content)
    with pytest.raises(UserError, match=r"part-000001.jsonl.gz: is damaged|no event of a trace"):
        list(read_events(tmp_path))
    part.write_bytes(gzip.compress(b'{"event":"party","at":1}\n'))
    with pytest.raises(UserError, match=r"part-000001.jsonl.gz, line 1: is no event of a trace"):
        list(read_events(tmp_path))
