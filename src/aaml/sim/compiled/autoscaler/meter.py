"""`aaml.nodes.meter` in compiled episodes, to the bit."""

from aaml.cluster.kernels import part, section
from aaml.nodes.meter import run_up
from aaml.nodes.rows import OFFER

_MILLI = 1000.0


@section
def _hold(at, terms, corners, carbon, now_s):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    since_s, at.metered_s = max(at.metered_s, 0.0), now_s
    if now_s <= since_s:
        return
    dollars, node_hours, core_hours, fluid_dollars, kwh, at.co2_g = run_up(
        corners[: terms.corners], carbon[: terms.hours], since_s, now_s, at.price, at.alive, at.cpu_milli,
        at.memory_bytes, 0, at.watts, at.co2_g,
    )  # fmt: skip
    at.dollars += dollars
    at.node_hours += node_hours
    at.core_hours += core_hours
    at.fluid_dollars += fluid_dollars
    at.kwh += kwh


@part
def hold(own, now_s):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Count what is as it was until now: `Meter.hold`."""
    _hold(own.at, own.terms, own.corners, own.carbon, now_s)


@part
def launched(own, kind):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """A node is bought, which counts as alive already."""
    own.at.price = own.at.price + own.offers[OFFER.price, kind]
    own.at.watts = own.at.watts + own.offers[OFFER.watts_idle, kind]


@part
def gone(own, kind):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """A node is given back, which counts as alive no more."""
    own.at.price = own.at.price - own.offers[OFFER.price, kind] if own.at.alive else 0.0
    own.at.watts = own.at.watts - own.offers[OFFER.watts_idle, kind]


@part
def placed(own, cpu, memory, kind, sign):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """A pod that asks for so much is on a node, or with `sign` -1 not any more."""
    own.at.cpu_milli += sign * cpu
    own.at.memory_bytes += sign * memory
    own.at.watts += own.offers[OFFER.watts_per_core, kind] * (sign * cpu) / _MILLI
