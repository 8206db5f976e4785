"""Windows of a trace: who runs, who comes, what changes; and that training never sees what judges."""

import pytest

from aaml.cluster.objects import Node, Pod
from aaml.errors import UserError
from aaml.sim.tasks import find_task
from aaml.workload.trace import windows
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
    # Pods ran for 10, 43, 103 and 210 s: five times the median of 73 s is more than the tenth of 300 s that a window
    # may have at most, and a verdict needs five of the ten windows.
    assert first == usual_split(TRACE) == Split(30.0, 150.0)
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


def lived(seconds, every=10, until=2000):
    """One pod after the other, each for so long."""
    pods = [(f"p{at}", at) for at in range(0, until, every)]
    events = [each for name, at in pods for each in (seen(name, at), bound(name, at), ended(name, at + seconds))]
    begin = [Began(at=T0), NodeSeen(at=T0, node=A), Listed(at=T0)]
    last = NodeSeen(at=T0 + until, node=B)
    return Trace.of(
        [*begin, *sorted((each for each in events if each.at < T0 + until), key=lambda each: each.at), last]
    )


@pytest.mark.parametrize(("seconds", "window_s", "holdout_from_s"), [
    (5, 60.0, 1380.0), (30, 120.0, 1320.0), (500, 180.0, 1080.0),
])  # fmt: skip
def test_a_window_lasts_five_lifetimes_where_ten_of_them_fit_into_the_trace(seconds, window_s, holdout_from_s):
    """2,000 s: a twentieth is 100 s, 60 in whole minutes; 150 s for pods of 30 s are two minutes; a tenth is three."""
    assert usual_split(lived(seconds)) == Split(window_s, holdout_from_s)


def test_windows_that_are_too_few_or_too_short_are_told_with_what_they_hide():
    """Pods of 21 s, three at a time: in a window of 10 s those that ran have 20.5 of its 30 pod-seconds."""
    trace = lived(21, every=7, until=700)
    short = Windows(trace, Split(10.0, 0.0))
    assert short.carried([30]) == pytest.approx(carried_by_hand(trace, 300.0, 310.0))
    (said,) = short.cautions(short.numbers)
    assert "windows of 10 s are short: half of the pods that end run for 21 s or longer" in said
    assert "of the pods' time" in said
    (said,) = Windows(trace, Split(200.0, 0.0)).cautions((0, 1, 2))
    assert "3 windows are too few for a verdict; it takes 5" in said
    assert Windows(trace, Split(120.0, 0.0)).cautions((0, 1, 2, 3, 4)) == []


def carried_by_hand(trace, start_s, end_s):
    """The share of a window's pod-seconds that pods have which were bound before it."""
    inside = [(life.bound_s < start_s, min(end_s, life.ended_s or end_s) - max(start_s, life.bound_s))
              for life in trace.lives.values()]  # fmt: skip
    whole = sum(seconds for _, seconds in inside if seconds > 0)
    return sum(seconds for before, seconds in inside if before and seconds > 0) / whole


def test_every_pod_of_the_trace_is_accounted_for_once():
    """Of seven pods one ran before the trace and one came with its node; `waits` waits from one window to the next."""
    found = WINDOWS.tally((0, 1))
    assert (found.arrive, found.twice, found.ran, found.outside) == (4, 1, 2, 1)
    assert found.arrive + found.ran + found.outside == len(TRACE.lives) == 7
    late = WINDOWS.tally((2,))
    assert (late.arrive, late.twice, late.ran, late.outside) == (1, 0, 2, 4)


def test_a_trace_in_which_nothing_happens_has_no_windows():
    with pytest.raises(UserError, match="nothing happens in it after its first moment"):
        usual_split(Trace.of([Began(at=0.0), NodeSeen(at=0.0, node=A), Listed(at=0.0)]))


@pytest.mark.parametrize(("window_s", "holdout", "field"), [(0, 0.3, "window_s"), (301, 0.3, "window_s"),
                                                            (10, 0, "holdout"), (10, 1.5, "holdout")])  # fmt: skip
def test_a_split_that_leaves_nothing_to_judge_on_is_refused(window_s, holdout, field):
    with pytest.raises(UserError, match=f"{field}: "):
        make_split(TRACE, window_s, holdout)


def test_a_trace_that_cannot_be_written_to_has_the_usual_windows(tmp_path, monkeypatch, caplog):
    def refuses(folder, _split):
        raise UserError(f"file {folder}: cannot be written: Read-only file system")

    folder = tmp_path / "a@b"
    with TraceWriter(folder) as writer:
        for event in EVENTS:
            writer.write(event)
    monkeypatch.setattr(windows, "write_split", refuses)
    assert read_windows(folder).split == usual_split(read_windows(folder).trace)
    assert "cannot be written: Read-only file system: its windows are the usual ones" in caplog.text
    assert find_task(str(folder)).folder == find_task(f"compress@{folder}").folder == folder
