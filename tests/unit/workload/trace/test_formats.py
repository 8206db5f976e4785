"""Public traces as their descriptions define them: small made-up samples, every number worked out by hand."""

import gzip
import hashlib
import json
import re
import sqlite3

import pytest

from aaml.cli import run as command
from aaml.cluster.objects import RACK_LABEL, GpuRequest, PodGroup
from aaml.cluster.quantity import CPU, MEMORY
from aaml.errors import UserError
from aaml.workload.fetch import fetch_files
from aaml.workload.philly import read_jobs, record_file
from aaml.workload.trace.formats.common import Options, events_of
from aaml.workload.trace.formats.known import FORMATS, convert, detect
from aaml.workload.trace.store import TraceWriter
from aaml.workload.trace.trace import Trace
from aaml.workload.trace.windows import Split, Windows

GIB = 1 << 30
USUAL = Options()


def read(source, options=USUAL):
    """Return the trace of a source, its lives by pod name, and what was left out."""
    converted = convert(source, detect(source), options)
    trace = Trace.of(events_of(converted))
    return trace, {life.pod.name: life for life in trace.lives.values()}, dict(converted.left_out)


def nodes(trace):
    return {event.node.name: event.node for event in trace.events if hasattr(event, "node")}


def test_a_table_of_ones_own_needs_four_columns_and_may_say_more(tmp_path):
    (tmp_path / "nodes.csv").write_text("name,cpu,memory,gpus,gpu_model\nn0,16,64Gi,2,T4\nn1,8,32Gi,,\n")
    (tmp_path / "pods.csv").write_text(
        "name,cpu,memory,created_s,runs_s,gpus,priority,node,bound_s\n"
        "a,500m,1Gi,10,600,,,,\nb,2,4Gi,40,,0.5,100,,\nc,1,1Gi,70,20,,,n1,72\nd,1,1Gi,90,1000,,,,\n"
    )
    trace, lives, _ = read(tmp_path)
    assert (lives["a"].pod.requests, lives["a"].pod.lifetime_s) == ({CPU: 500, MEMORY: GIB}, 600.0)
    assert (lives["b"].pod.gpu, lives["b"].pod.priority, lives["b"].pod.lifetime_s) == (GpuRequest(1, 500), 100, None)
    assert (lives["c"].node_name, lives["c"].bound_s) == ("n1", 62.0)  # 10 s after the trace's beginning
    assert (nodes(trace)["n0"].gpu_count, nodes(trace)["n1"].gpu_count) == (2, 0)
    assert trace.end_s == 80.0  # the last arrival: c ends 2 s later, a and d much later
    (late,) = (pod for pod in Windows(trace, Split(40.0, 0.0)).window(1).arrivals if pod.name == "a")
    assert late.lifetime_s == 560.0


@pytest.mark.parametrize(
    ("pods", "told"),
    [
        ("name,cpu,memory\na,1,1Gi\n", "pods.csv, line 1: column 'created_s' is missing"),
        ("name,cpu,memory,created_s\na,one,1Gi,0\n", "pods.csv, line 2, column cpu"),
        ("name,cpu,memory,created_s,node\na,1,1Gi,0,n1\n", "pods.csv, line 2: has one of node and bound_s"),
        ("name,cpu,memory,created_s,node\n\n\na,1,1Gi,0,n1\n", "pods.csv, line 4: has one of node and bound_s"),
        ("name,cpu,memory,created_s,node,bound_s\na,1,1Gi,0,n7,1\n", "column node: 'n7' is not accepted; expected n1"),
    ],
)
def test_a_mistake_in_a_table_of_ones_own_is_told_with_its_line(tmp_path, pods, told):
    (tmp_path / "nodes.csv").write_text("name,cpu,memory\nn1,8,32Gi\n")
    (tmp_path / "pods.csv").write_text(pods)
    with pytest.raises(UserError, match=re.escape(told)):
        read(tmp_path)


def openb(tmp_path):
    """Two pods; nothing says where they ran."""
    (tmp_path / "openb_node_list_gpu_node.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,T4\n")
    (tmp_path / "openb_pod_list_x.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p0,4000,15258,1,220,,BE,Running,100,130,100\np1,6000,1024,1,1000,T4|V100,LS,Running,140,1140,141\n"
    )
    return read(tmp_path / "openb_pod_list_x.csv")


def test_openb_has_the_lifetimes_of_its_creation_and_deletion_times(tmp_path):
    trace, lives, _ = openb(tmp_path)
    assert (trace.began_s, lives["p0"].created_s, lives["p1"].created_s) == (100.0, 0.0, 40.0)
    assert (lives["p0"].ended_s, lives["p1"].pod.lifetime_s) == (30.0, 1000.0)
    assert lives["p1"].pod.gpu == GpuRequest(1, 1000, frozenset({"T4", "V100"}))
    assert (nodes(trace)["n0"].gpu_count, lives["p0"].bound_s) == (2, None)


def test_pods_of_which_nobody_says_where_they_ran_are_placed_anew_for_what_is_left(tmp_path):
    """p0 runs 0 to 30, p1 40 to 1040: in the window from 100 to 200 p1 arrives at once, with 940 s left."""
    trace, _, _ = openb(tmp_path)
    window = Windows(trace, Split(100.0, 0.0)).window(1)
    assert [(pod.name, pod.created_s, pod.lifetime_s) for pod in window.arrivals] == [("p1", 0.0, 940.0)]
    assert window.running == window.removed == ()


def test_a_recording_of_the_seeds_says_who_was_where(tmp_path):
    (tmp_path / "sched_a.nodes.csv").write_text("name,cpu,memory,pods\nn0,64,256Gi,110\nn1,64,256Gi,110\n")
    (tmp_path / "sched_a.csv").write_text(
        "pod_name,action,reward,done,cpu_request,memory_request,cpu_n0,cpu_n1\n"
        "default/a,1,0.5,0,250m,512Mi,0,0\ndefault/b,0,0.5,1,1,1Gi,0,0.1\n"
    )
    trace, lives, _ = read(tmp_path / "sched_a.csv")
    assert [(life.pod.key, life.node_name, life.bound_s) for life in lives.values()] == [
        ("default/a", "n1", 0.0), ("default/b", "n0", 1.0),
    ]  # fmt: skip
    assert lives["a"].pod.requests == {CPU: 250, MEMORY: 512 << 20}
    assert trace.schedulers == {"default-scheduler": 2}


def test_deployments_of_the_seeds_live_from_their_create_to_their_delete(tmp_path):
    (tmp_path / "data_a.csv").write_text(
        "name,pod_count,cpu_request,cpu_limit,mem_request,mem_limit,action,lifetime_s\n"
        "web,2,500m,,1Gi,,create,\ndb,1,1,,2Gi,,create,60\nweb,2,500m,,1Gi,,delete,\n"
    )
    trace, lives, _ = read(tmp_path / "data_a.csv", Options(nodes=3))
    times = {name: (life.created_s, life.pod.lifetime_s) for name, life in lives.items()}
    assert times == {"web-0": (0.0, 2.0), "web-1": (0.0, 2.0), "db-0": (1.0, 60.0)}
    assert len(nodes(trace)) == 3


SWF = """; Version: 2.2
; MaxNodes: 2
; MaxProcs: 8
; UnixStartTime: 1000000000
  1  0 10 100 2 -1 -1 2 200 1024 1 1 1 1 1 1 -1 -1
  2 50  0  30 6 -1 512 -1 -1 -1 1 1 1 1 1 1 -1 -1
  3 60 -1  -1 4 -1 -1 4 100 -1 5 1 1 1 1 1 -1 -1
"""


@pytest.mark.parametrize("compressed", [False, True])
def test_a_log_in_the_standard_workload_format_has_gangs_for_jobs_larger_than_a_node(tmp_path, compressed):
    """Eight processors on two nodes: four each. Job 2 asks for six: four on one node, two on another, together."""
    path = tmp_path / ("log.swf.gz" if compressed else "log.swf")
    path.write_bytes(gzip.compress(SWF.encode()) if compressed else SWF.encode())
    trace, lives, left_out = read(path)
    assert {name: node.allocatable[CPU] for name, node in nodes(trace).items()} == {"node-0": 4000, "node-1": 4000}
    first, part, other = lives["job-1-0"].pod, lives["job-2-0"].pod, lives["job-2-1"].pod
    assert (first.request(CPU), first.request(MEMORY), first.lifetime_s, first.group) == (2000, 2 << 20, 100.0, None)
    assert (part.request(CPU), part.request(MEMORY), part.group) == (4000, 2 << 20, PodGroup("job-2", 2))
    assert (other.request(CPU), other.group, lives["job-2-1"].created_s) == (2000, part.group, 50.0)
    assert left_out == {"jobs that never ran, or without processors": 1}
    path = tmp_path / "bad.swf"
    path.write_text("1 2 3\n")
    with pytest.raises(UserError, match=r"bad.swf, line 1: expected 18 numbers"):
        read(path)


def test_alibabas_trace_of_2020_joins_instances_with_what_their_task_planned(tmp_path):
    (tmp_path / "pai_machine_spec.csv").write_text("m1,T4,96,512,2\nm2,CPU,64,256,0\n")
    (tmp_path / "pai_job_table.csv").write_text("j1,i1,u,Terminated,90.0,400.0\nj2,i2,u,Failed,150.0,\n")
    (tmp_path / "pai_task_table.csv").write_text(
        "j1,worker,2.0,Terminated,100.0,400.0,600.0,29.296875,50.0,T4\nj2,ps,1.0,Failed,160.0,,100.0,,,\n"
        "j3,worker,1.0,Terminated,1.0,2.0,100.0,1.0,200.0,T4\n"
    )
    (tmp_path / "pai_instance_table.csv").write_text(
        "j1,worker,a,w0,i1,Terminated,100.0,400.0,m1\nj1,worker,b,w1,i1,Running,101.0,,m1\n"
        "j2,ps,c,w2,i2,Failed,161.0,170.0,m2\nj3,worker,d,w3,i3,Terminated,200.0,210.0,m1\n"
        "j9,worker,e,w4,i9,Terminated,1.0,2.0,m1\nj1,worker,f,w5,i1,Waiting,,,\n"
    )
    trace, lives, left_out = read(tmp_path)
    first = lives["w0-0"]
    assert first.pod.requests == {CPU: 6000, MEMORY: round(29.296875 * GIB)}
    assert first.pod.gpu == GpuRequest(1, 500)
    assert (trace.began_s, first.created_s, first.bound_s, first.ended_s) == (90.0, 0.0, 10.0, 310.0)
    assert (first.node_name, first.how, lives["w1-1"].ended_s) == ("m1", "succeeded", None)
    assert (lives["w2-2"].how, lives["w2-2"].created_s, lives["w2-2"].pod.gpu.count) == ("failed", 60.0, 0)
    assert lives["w3-3"].pod.gpu == GpuRequest(2, 1000)
    assert left_out == {"instances without a task, a start or a known machine": 2}
    assert (nodes(trace)["m1"].gpu_model, nodes(trace)["m2"].gpu_count) == ("T4", 0)
    (tmp_path / "pai_machine_spec.csv").write_text("m1,T4,many,512,2\n")
    with pytest.raises(UserError, match="line 1, column cap_cpu: 'many'"):
        read(tmp_path)


def test_alibabas_spot_trace_of_2026_has_a_pod_for_each_worker_and_two_priorities(tmp_path):
    (tmp_path / "node_info_df.csv").write_text(
        "node_name,gpu_model,gpu_capacity_num,cpu_num\n0,A10,1,128\n1,A100,8,96\n"
    )
    (tmp_path / "job_info_df.csv").write_text(
        "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"
        "7,13,A10,20,1,1,0,3600,HP\n8,57,A100,15,2,3,60,41060,Spot\n9,57,A10,4,0.5,1,61,10,Spot\n"
    )
    trace, lives, _ = read(tmp_path)
    assert sorted(lives) == ["job-7-0", "job-8-0", "job-8-1", "job-8-2", "job-9-0"]
    hp, spot = lives["job-7-0"].pod, lives["job-8-2"]
    assert (hp.priority, hp.requests, hp.namespace) == (1000, {CPU: 20_000}, "org-13")
    assert (spot.pod.priority, spot.created_s, spot.pod.lifetime_s) == (0, 60.0, 41060.0)
    assert spot.pod.gpu == GpuRequest(2, 1000, frozenset({"A100"}))
    assert lives["job-9-0"].pod.gpu == GpuRequest(1, 500, frozenset({"A10"}))
    assert nodes(trace)["node-1"].gpu_count == 8


PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 07:01:15,100.0,20,2000.0,6214e9
2017-10-09 07:02:15,50.0,40,2000.0,6214e9
"""


def test_phillys_jobs_are_pods_or_groups_of_whole_nodes_in_the_namespaces_of_their_virtual_clusters(tmp_path):
    """A node has 8 GPUs, a rack 3 nodes: 20 GPUs are 8 + 8 + 4 in one rack, 40 GPUs are five nodes and no rack's."""
    path = tmp_path / "philly.csv"
    path.write_text(PHILLY)
    trace, lives, left_out = read(tmp_path, Options(nodes=6, nodes_per_rack=3))
    assert [node.labels[RACK_LABEL] for node in nodes(trace).values()] == ["rack-0"] * 3 + ["rack-1"] * 3
    alone, first, last = lives["job-0-0"], lives["job-1-0"], lives["job-1-2"]
    assert (alone.pod.gpu.count, alone.pod.group, alone.pod.namespace) == (1, None, "11cb48")
    assert (alone.created_s, alone.pod.lifetime_s) == (40.0, 66.0)  # 40 s after the first
    assert (first.pod.gpu.count, last.pod.gpu.count, last.pod.namespace) == (8, 4, "6214e9")
    assert first.pod.group == last.pod.group == PodGroup("job-1", 3, RACK_LABEL)
    assert lives["job-2-4"].pod.group == PodGroup("job-2", 5)
    assert left_out == {"requirements of one rack, by jobs larger than a rack": 1}
    trace, lives, left_out = read(path, Options(nodes=10, gpus_per_node=4))
    assert lives["job-1-4"].pod.group == PodGroup("job-1", 5), "without racks none is required"
    assert (left_out, nodes(trace)["node-0"].labels.get(RACK_LABEL)) == ({}, None)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("2017-10-09,66.0,1,66.0,a", "line 2, column timestamp: '2017-10-09' is not accepted; expected a time as"),
        ("2017-10-09 07:01:55,-1,1,66,a", "line 2, column duration: '-1' is not accepted; expected a number"),
        ("2017-10-09 07:01:55,66,0,0,a", "line 2, column num_gpus: '0' is not accepted; expected a whole number of at"),
        ("2017-10-09 07:01:55,66,2,66,a", "line 2, column gpu_time: 66.0 is not accepted; expected duration times"),
        ("2017-10-09 07:01:55,66,1,66,", "line 2, column cluster: '' is not accepted; expected a namespace's name"),
        ("2017-10-09 07:01:55,66,1,66", "line 2: 4 columns; expected 5"),
        ("2017-10-09 07:01:55,1,81,81,a", "nodes: 10 is not accepted; expected at least 11 of 8 GPUs: a job"),
    ],
)  # fmt: skip
def test_a_mistake_in_phillys_record_is_told_with_its_line(tmp_path, capsys, row, told):
    path = tmp_path / "philly.csv"
    path.write_text(f"{PHILLY.partition(chr(10))[0]}\n{row}\n")
    assert command("trace", ["convert", str(path), f"--out={tmp_path / 'out'}"]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_blank_lines_of_phillys_record_count_as_lines(tmp_path):
    path = tmp_path / "philly.csv"
    path.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n\n\n2017-10-09 07:01:55,300,2,999,aa\n")
    with pytest.raises(UserError, match=r"philly.csv, line 4, column gpu_time: 999.0 is not accepted"):
        read_jobs(path)


def test_what_cannot_be_fetched_is_told_with_whence_and_why(tmp_path):
    nobody = "http://127.0.0.1:9"
    with pytest.raises(UserError) as error:
        fetch_files(tmp_path / "out", [("https://example.com/philly.csv", "")], nobody)
    assert re.match(rf"philly.csv cannot be had \(cannot be fetched from {nobody}: .*refused\)", str(error.value))


def test_phillys_record_is_fetched_and_held_to_its_checksum(tmp_path, capsys):
    out = tmp_path / "philly"
    assert command("trace", ["fetch", "philly", f"--from={record_file().parent}", f"--out={out}"]) == 0
    assert len(read_jobs(out / "philly.csv")) == 82_247
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "philly.csv").write_text(PHILLY)
    assert command("trace", ["fetch", "philly", f"--from={origin}", f"--out={tmp_path / 'other'}"]) == 2
    assert re.search(r"philly.csv cannot be had .*SHA-256 is \w+, not ebffb3dd", capsys.readouterr().err)
    assert not (tmp_path / "other" / "philly.csv").exists()


def test_azures_packing_trace_is_shares_of_one_kind_of_machine_and_days(tmp_path):
    """Machine 2 offers both types. A quarter of 100 cores are 25; half a day after the beginning is 43,200 s."""
    path = tmp_path / "packing_trace_zone_a_v1.sqlite"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE vmType (id, vmTypeId, machineId, core, memory, hdd, ssd, nic)")
        base.execute("CREATE TABLE vm (vmId, tenantId, vmTypeId, priority, starttime, endtime)")
        base.executemany("INSERT INTO vmType VALUES (?,?,?,?,?,?,?,?)", [
            (0, 5, 1, 0.5, 0.5, None, 0.1, 0.1), (1, 5, 2, 0.25, 0.125, None, 0.5, 0.1), (2, 6, 2, 1, 1, None, 1, 1),
        ])  # fmt: skip
        base.executemany("INSERT INTO vm VALUES (?,?,?,?,?,?)", [
            (1, 9, 5, 0, 0.5, 1.5), (2, 9, 6, 1, -2.0, None), (3, 9, 7, 0, 0.1, 0.2), (4, 9, 5, 1, -1.0, 0.25),
        ])  # fmt: skip
    base.close()
    trace, lives, left_out = read(path, Options(nodes=2))
    first = lives["vm-1"]
    assert (first.pod.requests[CPU], first.pod.requests[MEMORY], first.pod.priority) == (25_000, 100 * GIB // 8, 1000)
    assert (first.created_s, first.pod.lifetime_s) == (43_200.0, 86_400.0)
    assert (lives["vm-2"].created_s, lives["vm-2"].pod.lifetime_s, lives["vm-2"].pod.priority) == (-172_800.0, None, 0)
    assert lives["vm-4"].ended_s == 21_600.0
    assert left_out == {"VMs of types that machine 2 does not offer": 1}
    assert (len(nodes(trace)), trace.began_s) == (2, 0.0)
    assert read(path, Options(machine="1"))[1]["vm-1"].pod.requests[CPU] == 50_000
    with pytest.raises(UserError, match="machine: '3' is not accepted; expected one of 1, 2"):
        read(path, Options(machine="3"))
    path.write_text("nothing")
    with pytest.raises(UserError, match="is not Azure's packing trace"):
        read(path)


def test_googles_trace_of_2019_makes_a_pod_of_each_life_of_an_instance(tmp_path):
    def write(name, rows):
        (tmp_path / name).write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))

    second = 1_000_000
    machine = {"machine_id": "7", "switch_id": "s1", "capacity": {"cpus": 0.5, "memory": 0.25}}
    write("machine_events-000.json.gz", [
        {"time": "0", "type": 1, **machine}, {"time": str(900 * second), "type": "REMOVE", "machine_id": "7"},
    ])  # fmt: skip
    task = {"collection_id": "1", "instance_index": "0", "priority": 200, "machine_id": "7",
            "resource_request": {"cpus": 0.01, "memory": 0.002}}  # fmt: skip
    write("instance_events-000.json.gz", [
        {"time": str(600 * second), "type": 0, **task, "machine_id": "0"},
        {"time": str(605 * second), "type": 3, **task},
        {"time": str(650 * second), "type": 4, **task}, {"time": str(650 * second), "type": 0, **task},
        {"time": str(660 * second), "type": "SCHEDULE", **task},
        {"time": str(700 * second), "type": "FINISH", **task},
        {"time": str(610 * second), "type": 3, **task, "collection_id": "2", "alloc_collection_id": "5"},
        {"time": str((1 << 63) - 1), "type": 6, **task, "collection_id": "3"},
    ])  # fmt: skip
    trace, lives, left_out = read(tmp_path)
    first, again = lives["c1-0-0"], lives["c1-0-1"]
    assert first.pod.requests == {CPU: 1000, MEMORY: round(0.2 * GIB + 0.5)}
    times = [(life.created_s, life.bound_s, life.ended_s, life.how) for life in (first, again)]
    assert times == [(0.0, 5.0, 50.0, "evicted"), (50.0, 60.0, 100.0, "succeeded")]
    assert (first.node_name, first.pod.priority, trace.began_s) == ("m-7", 200, 600.0)
    assert nodes(trace)["m-7"].labels["rack"] == "s1"
    assert left_out == {"events of tasks inside an alloc": 1, "events after the trace": 1}


def two_instances(tmp_path):
    (tmp_path / "pai_machine_spec.csv").write_text("machine,gpu_type,cap_cpu,cap_mem,cap_gpu\nm1,T4,96,512,2\n")
    (tmp_path / "pai_job_table.csv").write_text("j1,i1,u,Terminated,100.0,400.0\n")
    (tmp_path / "pai_task_table.csv").write_text("j1,worker,2.0,Terminated,100.0,400.0,600.0,8,50.0,T4\n")
    (tmp_path / "pai_instance_table.csv").write_text(
        "j1,worker,a,w0,i1,Terminated,100.0,400.0,m1\nj1,worker,b,w1,i1,Terminated,200.0,300.0,m1\n"
    )


def test_the_commands_convert_summarise_split_and_make_a_table(tmp_path, capsys):
    two_instances(tmp_path)
    out = tmp_path / "trace"
    assert command("trace", ["convert", str(tmp_path), f"--out={out}"]) == 0
    assert command("trace", ["summary", str(out), "--json"]) == 0
    said = capsys.readouterr().out
    summary = json.loads(said[said.index("{") :])
    assert (summary["pods"], summary["nodes_at_most"], summary["schedulers"]) == (2, 1, {"alibaba-2020": 2})
    assert summary["lifetime_s"]["p50"] == 200.0  # 100 and 300 s
    # 6 of 96 cores for 100 s, twice that for 100 s, and 6 for 200 s, of 400 s
    assert summary["load"]["cpu"] == pytest.approx((100 * 6 + 100 * 12 + 100 * 6) / (96 * 300))
    assert command("trace", ["split", str(out), "--window-s=100", "--holdout=0.5"]) == 0
    assert "windows of 100 s, 1 for training and validation, 2 from 100 s on for evaluation" in capsys.readouterr().out
    table = tmp_path / "sched_x.csv"
    assert command("trace", ["table", str(out), f"--out={table}", "--scheduler=alibaba-2020"]) == 0
    assert [line.split(",")[0] for line in table.read_text().splitlines()[1:]] == ["pai/w0-0", "pai/w1-1"]
    assert command("trace", ["convert", str(tmp_path), f"--out={out}"]) == 2
    assert "a folder without a trace" in capsys.readouterr().err


def test_a_conversion_that_is_cut_off_leaves_no_trace_that_looks_whole(tmp_path, monkeypatch, capsys):
    two_instances(tmp_path)
    out, real = tmp_path / "trace", TraceWriter.write
    written = []

    def full(writer, event):
        real(writer, event)
        writer.flush()
        written.append(event)
        if len(written) == 3:
            raise UserError(f"out {out}: cannot be written: No space left on device")

    (out / ".converting-killed").mkdir(parents=True)
    (out / ".converting-killed" / "part-000001.jsonl.gz").write_bytes(b"")
    monkeypatch.setattr(TraceWriter, "write", full)
    assert command("trace", ["convert", str(tmp_path), f"--out={out}"]) == 2
    assert capsys.readouterr().err.endswith("cannot be written: No space left on device\n")
    assert not list(out.glob("*")), "nothing that anybody could take for the trace"
    monkeypatch.undo()
    assert command("trace", ["convert", str(tmp_path), f"--out={out}"]) == 0
    assert [path.name for path in out.iterdir()] == ["part-000001.jsonl.gz"]


def test_what_is_not_clearly_of_one_format_is_asked_for(tmp_path):
    with pytest.raises(UserError, match="say --format"):
        detect(tmp_path)
    with pytest.raises(UserError, match="format: 'gogle' is not accepted; did you mean google2019"):
        convert(tmp_path, "gogle", Options())
    for name, each in FORMATS.items():
        assert each.summary
        assert all(not file.sha256 or len(file.sha256) == 64 for file in each.files), name


def test_files_are_held_to_the_published_checksum_or_to_that_of_the_first_download(tmp_path):
    origin, folder = tmp_path / "origin", tmp_path / "data"
    origin.mkdir()
    (origin / "a.csv").write_text("published\n")
    (origin / "b.csv").write_text("first\n")
    published = hashlib.sha256(b"published\n").hexdigest()
    files = [("https://nowhere.example/a.csv", published), ("https://nowhere.example/b.csv", "")]
    assert fetch_files(folder, files, str(origin)) == ["a.csv", "b.csv"]
    assert fetch_files(folder, files, str(origin)) == []
    assert f"{published}  a.csv" in (folder / "SHA256SUMS").read_text()
    (folder / "b.csv").write_text("damaged\n")
    assert fetch_files(folder, files, str(origin)) == ["b.csv"]
    (folder / "b.csv").write_text("damaged\n")
    (origin / "b.csv").write_text("another\n")
    with pytest.raises(UserError, match=r"b.csv cannot be had .*SHA-256 is"):
        fetch_files(folder, files, str(origin))
    assert (folder / "b.csv").read_text() == "damaged\n"
