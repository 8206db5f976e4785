"""Losses against hand-computed tables and against TorchRL's on fixed sizes."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from aaml.learning import losses


def test_double_q_target_takes_the_online_networks_feasible_choice_at_the_target_networks_value():
    online = torch.tensor([[1.0, 5.0, 9.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    target = torch.tensor([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0], [7.0, 7.0, 7.0]])
    mask = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    reward, discount = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.9, 0.9])
    # Row 0: node 2 is forbidden, node 1 is the best of the rest: 1 + 0.5 * 20. Row 1: node 0: 2 + 0.9 * 40.
    # Row 2: no choice at all, so no bootstrap.
    expected = torch.tensor([11.0, 38.0, 3.0])
    torch.testing.assert_close(losses.double_q_target(reward, discount, online, target, mask), expected)


def test_terminated_steps_do_not_bootstrap():
    q = torch.full((1, 2), 100.0)
    mask = torch.ones(1, 2, dtype=torch.bool)
    target = losses.double_q_target(torch.tensor([4.0]), torch.tensor([0.0]), q, q, mask)
    torch.testing.assert_close(target, torch.tensor([4.0]))


def test_q_loss_is_quadratic_within_one_and_linear_beyond():
    q = torch.tensor([[0.5, 9.0], [9.0, 4.0]])
    loss, error = losses.q_loss(q, torch.tensor([0, 1]), torch.tensor([0.0, 1.0]))
    # Errors 0.5 and 3: (0.5 * 0.25 + (3 - 0.5)) / 2 = 1.3125.
    torch.testing.assert_close(loss, torch.tensor(1.3125))
    torch.testing.assert_close(error, torch.tensor([0.5, 3.0]))
    weighted, _ = losses.q_loss(q, torch.tensor([0, 1]), torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.0]))
    torch.testing.assert_close(weighted, torch.tensor(0.125))


def test_no_gradient_reaches_the_target():
    q, target = torch.ones(1, 2, requires_grad=True), torch.zeros(1, requires_grad=True)
    losses.q_loss(q, torch.tensor([0]), target)[0].backward()
    assert target.grad is None
    torch.testing.assert_close(q.grad, torch.tensor([[1.0, 0.0]]))


def test_dueling_averages_over_the_feasible_rows_only():
    q = losses.dueling(torch.tensor([10.0]), torch.tensor([[1.0, 3.0, 100.0]]), torch.tensor([[True, True, False]]))
    torch.testing.assert_close(q, torch.tensor([[9.0, 11.0, 108.0]]))


def test_generalized_advantage_by_hand():
    # gamma = lambda = 0.5. Deltas: 1 + 0.5*4 - 2 = 1; 2 + 0.5*6 - 4 = 1; terminated: 3 - 6 = -3.
    # A2 = -3, A1 = 1 + 0.25 * -3 = 0.25, A0 = 1 + 0.25 * 0.25 = 1.0625.
    value = torch.tensor([2.0, 4.0, 6.0])
    ends = torch.tensor([False, False, True])
    advantage, returns = losses.generalized_advantage(
        torch.tensor([1.0, 2.0, 3.0]), value, torch.tensor([4.0, 6.0, 99.0]), ends, ends, 0.5, 0.5
    )
    torch.testing.assert_close(advantage, torch.tensor([1.0625, 0.25, -3.0]))
    torch.testing.assert_close(returns, torch.tensor([3.0625, 4.25, 3.0]))


def test_a_truncated_step_bootstraps_but_ends_the_sum():
    done = torch.tensor([True, True])
    advantage, _ = losses.generalized_advantage(
        torch.tensor([1.0, 1.0]), torch.zeros(2), torch.tensor([10.0, 10.0]), ~done, done, 0.5, 1.0
    )
    torch.testing.assert_close(advantage, torch.tensor([6.0, 6.0]))


def test_entropy_and_policy_ignore_forbidden_rows():
    logits = torch.tensor([[0.0, 0.0, 50.0], [math.log(3.0), 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    # Two equal choices: ln 2. Odds of 3 to 1: -(0.75 ln 0.75 + 0.25 ln 0.25).
    expected = torch.tensor([math.log(2.0), -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))])
    torch.testing.assert_close(losses.entropy(logits, mask), expected)
    probability = losses.log_policy(logits, mask).exp()
    torch.testing.assert_close(probability, torch.tensor([[0.5, 0.5, 0.0], [0.75, 0.25, 0.0]]))


def test_entropys_gradient_is_finite_where_rows_are_forbidden():
    logits = torch.zeros(1, 3, requires_grad=True)
    losses.entropy(logits, torch.tensor([[True, False, True]])).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_clipped_policy_loss_by_hand():
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5])
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0])
    # min of both: 1.2*2, 1.5*-2, 0.5*2, 0.8*-2 = 2.4, -3, 1, -1.6; minus their mean = 0.3.
    loss = losses.clipped_policy_loss(ratio.log(), torch.zeros(4), advantage, 0.2)
    torch.testing.assert_close(loss, torch.tensor(0.3))


def test_clipped_value_loss_by_hand():
    value = torch.tensor([0.5, 0.5, -0.4], requires_grad=True)
    old, target = torch.tensor([0.0, 0.4, 0.0]), torch.tensor([1.0, 1.0, 1.0])
    loss = losses.clipped_value_loss(value, old, target, 0.2)
    # Moved by 0.5, counted at 0.2: 0.8^2 / 2 = 0.32. Moved by 0.1: 0.5^2 / 2 = 0.125. Away from its target, -0.4 counts
    # in full, not -0.2: 1.4 - 0.5 = 0.9.
    torch.testing.assert_close(loss, torch.tensor((0.32 + 0.125 + 0.9) / 3))
    loss.backward()
    torch.testing.assert_close(value.grad, torch.tensor([0.0, -0.5 / 3, -1.0 / 3]))


def test_at_the_old_policy_ppo_and_a2c_have_the_same_gradient():
    gradients = []
    for loss in (
        lambda log_prob, a: -(log_prob * a).mean(),
        lambda log_prob, a: losses.clipped_policy_loss(log_prob, log_prob.detach(), a, 0.2),
    ):
        log_prob = torch.tensor([-0.1, -2.0, -0.7], requires_grad=True)
        loss(log_prob, torch.tensor([1.0, -2.0, 0.5])).backward()
        gradients.append(log_prob.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_imitation_losses_by_hand():
    scores = torch.tensor([[1.0, 3.0, 9.0]])
    mask = torch.tensor([[True, True, False]])
    teacher = torch.tensor([0])
    # Odds e^-2: -ln(1 / (1 + e^2)); and (3 + 0.8) - 1 for the margin.
    torch.testing.assert_close(
        losses.imitation_loss(scores, mask, teacher), torch.tensor(math.log(1.0 + math.exp(2.0)))
    )
    torch.testing.assert_close(losses.margin_loss(scores, mask, teacher), torch.tensor(2.8))
    torch.testing.assert_close(losses.margin_loss(scores, mask, torch.tensor([1])), torch.tensor(0.0))


def test_wrong_ranks_are_refused():
    with pytest.raises(ValueError, match="rank 1"):
        losses.value_loss(torch.zeros(2, 1), torch.zeros(2))
    with pytest.raises(ValueError, match="equal shapes"):
        losses.mask_scores(torch.zeros(2, 3), torch.zeros(2, 4, dtype=torch.bool))


def test_generalized_advantage_is_torchrls():
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    rng = np.random.default_rng(7)
    reward, value, following = (torch.from_numpy(rng.normal(size=40)) for _ in range(3))
    terminated = torch.from_numpy(rng.random(40) < 0.1)
    done = terminated | torch.from_numpy(rng.random(40) < 0.1)
    ours = losses.generalized_advantage(reward, value, following, terminated, done, 0.97, 0.9)
    theirs = generalized_advantage_estimate(
        0.97, 0.9, value[:, None], following[:, None], reward[:, None], done[:, None], terminated[:, None]
    )
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other[:, 0], rtol=1e-5, atol=1e-6)


def test_the_dqn_loss_is_torchrls():
    from tensordict import TensorDict
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss

    torch.manual_seed(0)
    network = nn.Linear(6, 4)
    actor = QValueActor(network, in_keys=["observation"], action_space="categorical")
    module = DQNLoss(actor, loss_function="smooth_l1", delay_value=True, double_dqn=True, action_space="categorical")
    module.make_value_estimator(gamma=0.9)
    target_network = nn.Linear(6, 4)  # a target unlike the network, so that the two roles can't be mixed up
    for name, parameter in target_network.named_parameters():
        module.target_value_network_params["module", "0", "module"][name].data.copy_(parameter.data)
    state, following = torch.randn(32, 6), torch.randn(32, 6)
    action, reward, terminated = torch.randint(4, (32,)), torch.randn(32) * 3.0, torch.rand(32) < 0.2
    theirs = module(
        TensorDict(
            {
                "observation": state,
                "action": action,
                "next": {
                    "observation": following,
                    "reward": reward[:, None],
                    "done": terminated[:, None],
                    "terminated": terminated[:, None],
                },
            },
            batch_size=[32],
        )
    )["loss"]
    target = losses.double_q_target(
        reward,
        0.9 * (~terminated).float(),
        network(following),
        target_network(following),
        torch.ones(32, 4, dtype=torch.bool),
    )
    ours, _ = losses.q_loss(network(state), action, target)
    torch.testing.assert_close(ours, theirs)


def test_the_clipped_policy_loss_and_entropy_are_torchrls():
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import MaskedCategorical, ProbabilisticActor
    from torchrl.objectives import ClipPPOLoss

    torch.manual_seed(1)
    network = nn.Linear(6, 5)
    mask = torch.rand(32, 5) < 0.7
    mask[:, 0] = True
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["logits"]),
        in_keys={"logits": "logits", "mask": "mask"},
        distribution_class=MaskedCategorical,
        return_log_prob=True,
    )
    critic = TensorDictModule(nn.Linear(6, 1), in_keys=["observation"], out_keys=["state_value"])
    module = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_bonus=True, entropy_coeff=0.01)
    state, advantage = torch.randn(32, 6), torch.randn(32)
    action = mask.float().multinomial(1)[:, 0]
    old = torch.randn(32) * 0.3 - 1.0
    theirs = module(
        TensorDict(
            {
                "observation": state,
                "mask": mask,
                "action": action,
                "action_log_prob": old,
                "advantage": advantage[:, None],
                "value_target": torch.zeros(32, 1),
            },
            batch_size=[32],
        )
    )
    log_prob = losses.select(losses.log_policy(network(state), mask), action)
    ours = losses.clipped_policy_loss(log_prob, old, advantage, 0.2)
    torch.testing.assert_close(ours, theirs["loss_objective"])
    torch.testing.assert_close(losses.entropy(network(state), mask).mean(), theirs["entropy"])


def test_each_groups_are_measured_by_their_own_differences():
    """Two groups of two episodes over two moments: 3 and -3, 1 and -1 and 0: their root mean squares by hand."""
    advantage = torch.tensor([[3.0, -3.0, 1.0, -1.0, 0.0, 0.0], [3.0, -3.0, 0.0, 0.0, 0.0, 0.0]])
    expected = torch.tensor([[3.0, 3.0, math.sqrt(0.5), math.sqrt(0.5), 1.0, 1.0]])
    torch.testing.assert_close(losses.typical_difference(advantage, 2), expected)


def test_advantages_have_no_mean_under_the_policy_that_drew():
    """Dueling values 1, 2, 3 are V = 2 with advantages -1, 0, 1, whose mean is -0.25 where the first is drawn half."""
    q = torch.tensor([[1.0, 2.0, 3.0, 70.0], [5.0, 5.0, 70.0, 9.0]])
    mask = torch.tensor([[True, True, True, False], [True, True, False, True]])
    log_prob = losses.log_policy(torch.tensor([[0.5, 0.25, 0.25, 1.0], [0.2, 0.3, 1.0, 0.5]]).log(), mask)
    seen = losses.dueling_under(q, log_prob, mask)
    torch.testing.assert_close(seen[0, :3], torch.tensor([1.25, 2.25, 3.25]))
    value = torch.tensor([2.0, 19.0 / 3.0])
    torch.testing.assert_close((log_prob.exp() * seen).sum(dim=1), value)


def test_how_far_an_update_goes_by_hand():
    old = torch.log(torch.tensor([0.5, 0.5, 0.2]))
    new = torch.log(torch.tensor([0.5, 0.75, 0.1]))
    # Ratios 1, 1.5 and 0.5: (0 + (0.5 - ln 1.5) + (-0.5 + ln 2)) / 3, and two of three are further than 0.2 from 1.
    torch.testing.assert_close(losses.approx_kl(new, old), torch.tensor((math.log(2.0) - math.log(1.5)) / 3.0))
    torch.testing.assert_close(losses.clip_fraction(new, old, 0.2), torch.tensor(2.0 / 3.0))


@pytest.mark.parametrize(
    ("value", "explained"),
    [([1.0, 2.0, 3.0], 1.0), ([2.0, 2.0, 2.0], 0.0), ([3.0, 2.0, 1.0], -3.0), ([11.0, 12.0, 13.0], 1.0)],
    ids=["perfect", "the mean", "the wrong way round", "shifted"],
)
def test_explained_variance_by_hand(value, explained):
    assert losses.explained_variance(torch.tensor(value), torch.tensor([1.0, 2.0, 3.0])) == pytest.approx(explained)


def test_returns_that_do_not_vary_explain_nothing():
    assert math.isnan(losses.explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])))
