"""The program that README begins with, to its last line: on a real cluster, until Ctrl-C."""

import os
import signal
import subprocess
import sys

from support.kwok import pod, pods, until
from support.program import small_program


def test_it_trains_compares_and_places_pods_until_ctrl_c(kwok, namespace, tmp_path):
    api = kwok.api()
    for number in range(4):
        api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(f"p{number}", schedulerName="custom-scheduler"))
    environment = {**os.environ, "KUBECONFIG": str(kwok.kubeconfig)}
    program = subprocess.Popen([sys.executable, "-c", small_program()], cwd=tmp_path, env=environment)
    try:
        bound = lambda: all(each["spec"].get("nodeName") for each in pods(api, namespace))  # noqa: E731
        until(bound, "a node for every pod", wait_s=400)
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 0
    finally:
        program.kill()
        program.wait()
