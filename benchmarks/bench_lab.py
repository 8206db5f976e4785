"""How long the page of `aaml lab` takes in a real browser: 5,000 nodes, 100,000 decisions, two policies side by side.

    python benchmarks/bench_lab.py

Serves a made-up replay from here, opens it in headless Chromium (the package chromium), and prints seconds from the
address to a page that is ready, milliseconds from a step of the slider to the next frame after its redraw (50th and
99th percentile of 100 steps, every frame waited for), seconds to a closer window and to a decision explained, and the
size of the exported file. Goals: ready below 5 s, a step below 200 ms.
"""

import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import uvicorn
from playwright.sync_api import Page, sync_playwright

from aaml.cluster.fleet import NodeShape, workers
from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.evaluation.run_spec import RunSpec
from aaml.insight.replay import AttemptRecord, Move, Replay
from aaml.lab.library import Library, Playback
from aaml.lab.page import export
from aaml.lab.runs import Playable
from aaml.lab.server import create_app
from aaml.sim.tasks import find_task

NODES, DECISIONS, STAYS, STEPS = 5_000, 100_000, 40_000, 100
POLICIES = ("kube-scheduler", "least-variance")
REPAINTED = """async (frame) => {
  const slider = document.getElementById("slider"), began = performance.now();
  slider.value = frame;
  slider.dispatchEvent(new Event("input"));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - began;
}"""


def replay(seed: int, policy: str) -> Replay:
    """Return a decision a second; each pod stays for `STAYS` seconds."""
    made = Replay(ClusterState(workers(NODES, NodeShape(cpu="64", memory="256Gi"))), lambda: 0.0, policy)
    nodes = np.random.default_rng(seed).integers(0, NODES, DECISIONS).tolist()
    made.pods += [Pod(f"p{number}", requests={"cpu": 4000, "memory": 8 << 30}) for number in range(DECISIONS)]
    comes = [Move(float(number), number, node, True) for number, node in enumerate(nodes)]
    goes = [Move(each.time_s + STAYS, each.pod, each.node, False) for each in comes[: DECISIONS - STAYS]]
    made.moves += sorted(comes + goes)
    made.attempts += [
        AttemptRecord(float(number), number, "assumed", node, number + max(0, number - STAYS), 0, NODES, 0.0, 0.0)
        for number, node in enumerate(nodes)
    ]
    made.decisions += made.attempts
    return made


def library() -> Library:
    """Return a library whose two replays have been played already."""
    made = Library()
    spec = RunSpec(find_task("balance"), {name: name for name in POLICIES})
    made.episodes = [Playable(spec, (NODES,), (1,), POLICIES)]
    for seed, policy in enumerate(POLICIES):
        playback = Playback(0, NODES, 1, policy, replay(seed, policy))
        playback.ended.set()
        made._playbacks[f"0-{NODES}-1-{policy}"] = playback  # noqa: SLF001
    return made


def look(page: Page, address: str) -> None:
    """Print what a person waits for."""
    for which in ("first load", "second load"):
        began = time.perf_counter()
        page.goto(address)
        page.wait_for_selector("body[data-ready=yes]")
        print(f"{which}: {time.perf_counter() - began:.2f} s")
    steps = [page.evaluate(REPAINTED, frame) for frame in range(50, 50 + STEPS)]
    print(f"a step of the slider: p50 {np.percentile(steps, 50):.0f} ms, p99 {np.percentile(steps, 99):.0f} ms")
    began = time.perf_counter()
    page.locator("#in").click()
    page.get_by_text("window 1/2").wait_for()
    print(f"a closer window: {time.perf_counter() - began:.2f} s")
    began = time.perf_counter()
    page.locator("#lists .side-a tbody tr").nth(3).click()
    page.locator("#why table").wait_for()
    print(f"a decision explained: {time.perf_counter() - began:.2f} s")


def main() -> None:
    """Serve, look, export."""
    shown = library()
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(shown), log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        with tempfile.TemporaryDirectory() as profile, sync_playwright() as driver:
            browser = driver.chromium.launch_persistent_context(
                profile, executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"],
                viewport={"width": 1500, "height": 1250},
            )  # fmt: skip
            page = browser.new_page()
            page.set_default_timeout(120_000)
            look(page, f"http://127.0.0.1:{listener.getsockname()[1]}/")
            browser.close()
    finally:
        server.should_exit = True
        thread.join()
    with tempfile.TemporaryDirectory() as folder:
        began, path = time.perf_counter(), Path(folder) / "page.html"
        export(shown, path, decisions=20)
        print(f"exported in {time.perf_counter() - began:.0f} s: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
