"""Who is made to step aside: nobody who does as well, but with a chance of 1%, and soon whoever does worse."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from aaml.errors import UserError
from aaml.evaluation.statistics import Bets
from aaml.live.failover import Failover
from aaml.policies.registry import make_policy, make_reward, register_reward
from aaml.scheduling.ports import Decision
from aaml.scheduling.rewards import range_of
from support import make

Values = npt.NDArray[np.float64]
RUNS, DECISIONS, MOST = 250, 10_000, 100.0  # 1 / 1%


def either(rng: np.random.Generator, chance: float, usual: float, rare: float) -> Values:
    return np.where(rng.random(RUNS) < chance, rare, usual)


NO_WORSE: dict[str, Callable[[np.random.Generator], Values]] = {
    "better by rare gains: -0.01, and +0.99 in 2%": lambda rng: either(rng, 0.02, -0.01, 0.99),
    "as good, by rare gains: -0.02, and +0.98 in 2%": lambda rng: either(rng, 0.02, -0.02, 0.98),
    "as good, by rare losses: +0.02, and -0.98 in 2%": lambda rng: either(rng, 0.02, 0.02, -0.98),
    "as good, normal": lambda rng: np.clip(rng.normal(0.0, 0.3, RUNS), -1.0, 1.0),
    "as good, a tossed coin: -1 or +1": lambda rng: either(rng, 0.5, -1.0, 1.0),
    "as good, the same choice in 95%": lambda rng: either(rng, 0.05, 0.0, 1.0) * rng.choice([-0.5, 0.5], RUNS),
}


@pytest.mark.slow
def test_of_those_that_are_no_worse_under_one_in_a_hundred_ever_steps_aside() -> None:
    """Six distributions, 250 runs of each, looked at after each of 10,000 decisions."""
    rng, bets = np.random.default_rng(21), Bets()
    ever = np.zeros((len(NO_WORSE), RUNS), dtype=bool)
    for _ in range(DECISIONS):
        bets.add(np.array([draw(rng) for draw in NO_WORSE.values()]))
        ever |= bets.capital >= MOST
    assert ever.mean() < 0.01
    assert (ever.mean(axis=1) < 0.02).all(), dict(zip(NO_WORSE, ever.sum(axis=1), strict=True))


@pytest.mark.parametrize(
    ("mean", "deviation", "good_before", "half", "most"),
    [
        (-0.5, 0.5, 0, 150, 170), (-0.2, 0.4, 0, 360, 430), (-0.1, 0.3, 0, 720, 880), (-0.05, 0.3, 0, 1500, 2050),
        (-0.2, 0.4, 5000, 510, 600), (-0.1, 0.3, 5000, 1010, 1250),
    ],
)  # fmt: skip
def test_one_that_does_worse_steps_aside_soon(
    mean: float, deviation: float, good_before: int, half: int, most: int
) -> None:
    """The table of docs/policy-failures.md: decisions until half, and 95%, of such models were replaced.

    Rewards are those of *balance*, in -4 ... 4; before it got worse the model was better by 0.05.
    """
    rng, bets = np.random.default_rng(22), Bets()
    at = np.full(RUNS, np.inf)
    for number in range(good_before + most):
        better = number < good_before
        bets.add(np.clip(rng.normal(0.05 if better else mean, deviation, RUNS) / 8.0, -1.0, 1.0))
        at = np.where((bets.capital >= MOST) & np.isinf(at), number + 1 - good_before, at)
    assert (at > 0).all(), "not while it was better"
    assert np.median(at) <= half
    assert np.percentile(at, 95) <= most


def test_the_capital_of_bets_by_hand() -> None:
    """Shares are 0.9 and 1/2 ... 1/256; a ninth of 1/2 each. After -1 and +1 a share s has (1 + s)(1 - s)."""
    bets = Bets()
    shares = [0.9, *(2.0**-power for power in range(1, 9))]
    bets.add(-1.0)
    assert bets.capital == pytest.approx(sum(1.0 + share for share in shares) / 18.0)
    bets.add(1.0)
    assert bets.capital == pytest.approx(sum(1.0 - share**2 for share in shares) / 18.0)
    assert (bets.count, float(bets.mean)) == (2, 0.0)


def test_players_who_begin_later_own_less_and_the_first_ones_leave() -> None:
    bets = Bets(every=1, kept=2)
    for expected in (1 / 2, 1 / 2 + 1 / 6, 1 / 6 + 1 / 12):
        bets.add(0.0)
        assert bets.capital == pytest.approx(expected)


class Chooses:
    """A policy that puts every pod on one node."""

    name = "chooses"

    def __init__(self, node_index: int) -> None:
        self.node_index = node_index

    def act(self, _context) -> Decision:
        return Decision(self.node_index)


def compare(reward: str, times: int, caplog=None) -> str | None:
    """Compare choosing node 0 with choosing node 1, on a cluster whose first node is the fuller one."""
    cluster = make.cluster(make.nodes(2))
    cluster.assume(make.pod("there", cpu=1000), cluster.names[0])
    failover = Failover(Chooses(1), make_reward(reward), share=float("inf"))
    verdict = None
    for number in range(times):
        context = make.context(cluster, make.pod(f"p{number}", cpu=1000), [1, 1])
        verdict = verdict or failover.worse(context, Decision(0))
    return verdict


@pytest.mark.parametrize("reward", ["balance", "balance=2,compress=0.1"])
def test_the_worse_of_two_choices_is_found(reward: str) -> None:
    assert "the reward is lower by" in (compare(reward, 200) or "")


def test_a_reward_that_no_choice_changes_replaces_nobody() -> None:
    """What has been waited is the same whoever is chosen, also where a reward remembers when it was asked."""
    assert compare("waiting-time", 300) is None


@register_reward("test-far")
def far(_context, node_index):
    return -50.0 if node_index == 0 else -40.0


@register_reward("test-far-and-known")
def known(_context, node_index):
    return -50.0 if node_index == 0 else -40.0


known.range = (-60.0, 0.0)  # type: ignore[attr-defined]


def test_a_reward_that_says_no_range_is_cut_to_one_and_that_is_told(caplog) -> None:
    assert compare("test-far", 300) is None, "both are -1 then"
    assert "says no range: where policies are compared its values count as within -1 ... 1" in caplog.text
    caplog.clear()
    assert "the reward is lower by 10 on average" in (compare("test-far-and-known", 300) or "")
    assert caplog.text == ""


def test_every_reward_of_ours_says_its_range() -> None:
    from aaml.policies.registry import RewardOptions
    from aaml.scheduling.rewards import BUILT_IN

    options = RewardOptions(fragmentation=lambda state: np.zeros(len(state)))
    for name in BUILT_IN:
        low, high = range_of(make_reward(name, options)) or (0.0, 0.0)
        assert low < high, name
    assert range_of(make_reward("balance=-2,gang-rack=1")) == (-8.0, 9.0)
    assert range_of(make_reward("balance=1,test-far=1")) is None
    for wrong in ("much", (1.0, 1.0), (0.0, float("inf"))):
        known.range = wrong  # type: ignore[attr-defined]
        try:
            with pytest.raises(UserError, match=r"range of the reward: .* is not accepted; expected two numbers"):
                Failover(make_policy("random"), make_reward("test-far-and-known"))
        finally:
            known.range = (-60.0, 0.0)  # type: ignore[attr-defined]


def test_rewards_stay_within_what_they_say() -> None:
    """Of *balance*, nearly all: at most one placement in a hundred, by chance chosen, is beyond -4 ... 4."""
    from aaml.scheduling.play import play
    from aaml.scheduling.ports import Observer
    from aaml.sim.tasks import find_task

    class Rewards(Observer):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_step(self, step) -> None:
            self.seen.append(step.outcome.reward)

    beyond = {}
    for name in ("balance", "balance-level", "compress", "seed-a", "seed-a-corrected"):
        reward, seen = make_reward(name), Rewards()
        for nodes in (5, 40):
            play(find_task("balance").build(3, nodes, pods=400), make_policy("random"), reward, observers=[seen])
        low, high = range_of(reward) or (0.0, 0.0)
        beyond[name] = sum(not low - 1e-9 <= value <= high + 1e-9 for value in seen.seen) / len(seen.seen)
    assert beyond.pop("balance") < 0.01
    assert set(beyond.values()) == {0.0}
