"""Windows of a trace: who runs, who comes, what changes; and that training never sees what judges."""

import pytest

from aaml.cluster.objects import Node, Pod
from aaml.errors import UserError
from aaml.workload.trace.events import Began, Listed, Lost, NodeGone, NodeSeen, PodBound, PodEnded, PodSeen
from aaml.workload.trace.store import TraceWriter
from aaml.workload.trace.trace import Trace
from aaml.workload.trace.windows import Split, Windows, make_split, read_windows, usual_split

A, B = Node("a", {"cpu": 1000, "pods": 9}), Node("b", {"cpu": 1000, "pods": 9})
T0 = 1000.0


def seen(name, at, created=None):
    return PodSeen(
        at=T0 + at, pod=Pod(name, requests={"cpu": 100}, created_s=T0 + (at if created is None else created))
    )


def bound(name, at, node="a", *, found=False):
    return PodBound(at=T0 + at, uid=f"default/{name}", node_name=node, found=found)


def ended(name, at, how="succeeded"):
    return PodEnded(at=T0 + at, uid=f"default/{name}", how=how)


EVENTS = (
    Began(at=T0), NodeSeen(at=T0, node=A), NodeSeen(at=T0, node=B), seen("old", -50, -50),
    bound("old", -40, found=True),
    Listed(at=T0),
    seen("short", 5), bound("short", 6), ended("short", 16),
    seen("waits", 95), seen("gives-up", 101), bound("waits", 112, "b"), ended("gives-up", 130, "deleted"),
    NodeGone(at=T0 + 150, name="b"), ended("waits", 155, "evicted"), seen("again", 156), bound("again", 157),
    seen("static", 160), bound("static", 160, found=True), ended("old", 170),
    ended("again", 260), seen("late", 295), NodeSeen(at=T0 + 300, node=B),
)  # fmt: skip
TRACE = Trace.of(EVENTS)
WINDOWS = Windows(TRACE, Split(100.0, 200.0))


def times(pods):
    return {pod.name: (pod.created_s, pod.lifetime_s) for pod in pods}


def test_the_first_window_begins_with_what_ran_and_what_is_left_of_it():
    window = WINDOWS.window(0)
    assert [node.name for node in window.nodes] == ["a", "b"]
    ran = [(each.pod.name, each.node_name, each.pod.lifetime_s, each.since_s) for each in window.running]
    assert ran == [("old", "a", 170.0, -40.0)]
    assert times(window.arrivals) == {"short": (5.0, 10.0), "waits": (95.0, 38.0)}
    assert {uid: placed.at_s for uid, placed in window.chosen.items()} == {"default/short": 6.0}
    assert window.changes == window.others == window.removed == ()


def test_a_pod_that_waits_arrives_at_the_beginning_of_the_next_window_and_others_come_as_they_did():
    window = WINDOWS.window(1)
    assert times(window.arrivals) == {"waits": (0.0, 38.0), "gives-up": (1.0, None), "again": (56.0, 103.0)}
    assert window.removed == ((30.0, "default/gives-up"),)
    assert [(change.at_s, change.name, change.node) for change in window.changes] == [(50.0, "b", None)]
    assert [(each.at_s, each.pod.name, each.node_name) for each in window.others] == [(60.0, "static", "a")]
    assert [(each.pod.name, each.pod.lifetime_s) for each in window.running] == [("old", 70.0)]


def test_a_pod_whose_node_was_removed_ends_with_it_for_its_successor_is_in_the_trace_as_well():
    """waits was bound at 112 s, its node removed at 150 s, its end told at 155 s: it ran 38 s."""
    assert times(WINDOWS.window(1).arrivals)["waits"] == (0.0, 38.0)


def test_what_has_not_ended_runs_on_and_what_was_never_placed_has_no_lifetime():
    window = WINDOWS.window(2)
    assert times(window.arrivals) == {"late": (95.0, None)}
    assert {each.pod.name: each.pod.lifetime_s for each in window.running} == {"again": 60.0, "static": None}
    assert [node.name for node in window.nodes] == ["a"]


def test_parts_are_windows_of_their_own_in_the_order_of_time():
    trace = Trace.of([Began(at=0.0), NodeSeen(at=0.0, node=A), Listed(at=0.0), NodeSeen(at=200.0, node=B)])
    windows = Windows(trace, make_split(trace, 10.0, 0.3))
    parts = {part: windows.part(part) for part in ("training", "validation", "holdout")}
    assert parts["holdout"] == (14, 15, 16, 17, 18, 19)
    assert parts["validation"] == (4, 9)
    assert parts["training"] == (0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13)


def test_a_window_in_which_nobody_looked_is_left_out():
    events = [Began(at=0.0), NodeSeen(at=0.0, node=A), Listed(at=0.0), Lost(at=27.0, since=18.0),
              NodeSeen(at=100.0, node=B)]  # fmt: skip
    windows = Windows(Trace.of(events), Split(10.0, 50.0))
    assert windows.numbers == (0, 3, 4, 5, 6, 7, 8, 9)
    with pytest.raises(UserError, match="window: 1 is not accepted; expected one of 0, 3"):
        windows.window(1)


def test_the_first_split_stays_when_the_recording_goes_on(tmp_path):
    with TraceWriter(tmp_path) as writer:
        for event in EVENTS:
            writer.write(event)
    first = read_windows(tmp_path).split
    assert first == usual_split(TRACE) == Split(15.0, 210.0)  # 300 s in twenty windows, the last six for judging
    with TraceWriter(tmp_path) as writer:
        writer.write(NodeGone(at=T0 + 10_000, name="b"))
    from aaml.workload.trace import windows

    windows._read.cache_clear()
    assert read_windows(tmp_path).split == first
    (tmp_path / "split.json").write_text("{")
    windows._read.cache_clear()
    with pytest.raises(UserError, match=r"split.json: is no split"):
        read_windows(tmp_path)


@pytest.mark.parametrize(("end_s", "split"), [
    (0.86, Split(0.86, 0.0)), (1.0, Split(1.0, 0.0)), (2.5, Split(1.0, 1.0)), (40.0, Split(2.0, 28.0)),
])  # fmt: skip
def test_a_short_trace_has_fewer_windows_and_one_of_less_than_a_second_is_a_window_itself(end_s, split):
    events = [Began(at=0.0), NodeSeen(at=0.0, node=A), Listed(at=0.0), NodeSeen(at=end_s, node=B)]
    assert usual_split(Trace.of(events)) == split


def test_a_trace_in_which_nothing_happens_has_no_windows():
    with pytest.raises(UserError, match="nothing happens in it after its first moment"):
        usual_split(Trace.of([Began(at=0.0), NodeSeen(at=0.0, node=A), Listed(at=0.0)]))


@pytest.mark.parametrize(("window_s", "holdout", "field"), [(0, 0.3, "window_s"), (301, 0.3, "window_s"),
                                                            (10, 0, "holdout"), (10, 1.5, "holdout")])  # fmt: skip
def test_a_split_that_leaves_nothing_to_judge_on_is_refused(window_s, holdout, field):
    with pytest.raises(UserError, match=f"{field}: "):
        make_split(TRACE, window_s, holdout)
