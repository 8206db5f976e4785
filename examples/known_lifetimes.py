"""Services and jobs whose owners' pods run more and more nearly equally long: what there is to know about lifetimes.

`aaml evaluate --task examples/known_lifetimes.py:narrow --policies best-fit nilas clairvoyant --reference best-fit`
"""

from dataclasses import replace

import aaml
from aaml.sim.tasks import SERVICES_AND_JOBS, Mix

TASK = aaml.task("services-and-jobs")

middle = replace(TASK, draw=Mix(0.35, replace(SERVICES_AND_JOBS, lifetime_sigma=0.6), burst=12.0))
narrow = replace(TASK, draw=Mix(0.35, replace(SERVICES_AND_JOBS, lifetime_sigma=0.3), burst=12.0))
equal = replace(TASK, draw=Mix(0.35, replace(SERVICES_AND_JOBS, lifetime="fixed"), burst=12.0))
