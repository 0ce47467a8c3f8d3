"""Training and sampling as it is written: experts with routing by masks, schedulers, replay, chains of samples. No
library is needed."""

import pytest
import torch
from steps import World, check_steps
from torch import distributions as D
from torch import nn
from torch.nn import functional as F


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 3), nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.register_buffer("load", torch.zeros(3))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == n)
            if rows.numel() == 0:
                continue
            self.load[n] += rows.numel()
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])
        return out


def test_experts_are_routed_by_masks():
    def make():
        model = Experts()
        return World(lambda x: model(x).square().sum(), lambda step: (torch.randn(4, 6),), [model])

    check_steps(make, programs=6)


def test_boxes_are_suppressed():
    def make():
        head = nn.Linear(4, 5)

        def kept(x):
            p = head(x)
            boxes, scores = (
                torch.cat([p[:, :2].sigmoid(), p[:, :2].sigmoid() + p[:, 2:4].sigmoid()], 1),
                p[:, 4].sigmoid(),
            )
            order, keep = scores.argsort(descending=True), []
            while order.numel() > 0:
                first, rest = order[0], order[1:]
                keep.append(first)
                low, high = (
                    torch.maximum(boxes[first, :2], boxes[rest, :2]),
                    torch.minimum(boxes[first, 2:], boxes[rest, 2:]),
                )
                shared = (high - low).clamp(min=0).prod(1)
                areas = [(b[..., 2:] - b[..., :2]).prod(-1) for b in (boxes[first], boxes[rest])]
                order = rest[shared / (areas[0] + areas[1] - shared) <= 0.5]
            return scores[torch.stack(keep)].sum()

        return World(kept, lambda step: (torch.randn(5, 4),), [head])

    check_steps(make, programs=6)


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning", "ignore::UserWarning")
def test_a_whole_step_with_a_scheduler_and_clipping():
    def make():
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
        optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 10)

        def step(x, y):
            optimiser.zero_grad()
            loss = F.mse_loss(model(x).squeeze(-1), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimiser.step()
            scheduler.step()
            return loss.detach() * optimiser.param_groups[0]["lr"]

        return World(step, lambda _: (torch.randn(8, 4), torch.randn(8)), [model], between=lambda _: None)

    check_steps(make, programs=5)


def test_a_whole_step_of_adam_makes_its_state():
    """Weights of one shape among them, each with averages of its own."""

    def make():
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
        optimiser = torch.optim.AdamW(model.parameters(), 0.01)

        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            return loss.detach()

        def arguments(_):
            return torch.randn(8, 4), torch.randint(0, 4, (8,))

        return World(step, arguments, [model], between=lambda _: None)

    check_steps(make, programs=2)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x):
        mean, scale = self.encode(x).chunk(2, -1)
        found = torch.distributions.Normal(mean, F.softplus(scale))
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(scale))
        seen = torch.distributions.Bernoulli(logits=self.decode(found.rsample()))
        likelihood = seen.log_prob((x > 0).to(x.dtype)).sum(-1)
        return (torch.distributions.kl_divergence(found, prior).sum(-1) - likelihood).mean()


def test_a_variational_autoencoder_learns_from_batches_of_other_sizes():
    def make():
        model = Autoencoder()
        return World(lambda x: model(x), lambda step: (torch.randn(4 + step, 6),), [model])

    check_steps(make, programs=2)


def test_a_policy_is_improved():
    def make():
        policy = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))

        def episode(state):
            logs, returns, total = [], [], torch.zeros(())
            for _ in range(4):
                choice = torch.distributions.Categorical(logits=policy(state))
                action = choice.sample()
                logs.append(choice.log_prob(action))
                state = state * 0.9 + torch.stack([action - 1.0, 1.0 - action])
                returns.append(-state.square().sum())
            for n in reversed(range(4)):
                returns[n] = total = returns[n] + 0.9 * total
            gain = torch.stack(returns).detach()
            return -(torch.stack(logs) * (gain - gain.mean()) / (gain.std() + 1e-6)).sum()

        return World(episode, lambda step: (torch.randn(2),), [policy])

    check_steps(make, programs=1)


def test_a_chain_is_sampled():
    def make():
        def chain(x):
            samples = []
            for _ in range(3):
                y = x + torch.randn(()) * 0.8
                x = y if torch.rand(()).log() < (x**2 - y**2) / 2 else x
                samples.append(x)
            return torch.stack(samples)

        return World(chain, lambda step: (torch.randn(()),))

    check_steps(make, programs=5)


def test_a_step_of_training_with_clipped_gradients_and_a_one_cycle_schedule():
    """The schedule sets the rate, and a momentum in a tuple."""

    def make():
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
        optimiser = torch.optim.AdamW(model.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=30)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()
            return loss.detach()

        return World(step, lambda step: (torch.randn(5 + step, 4),), [model], lambda _: None)

    check_steps(make, programs=3)


def test_variational_inference_of_a_linear_model():
    def make():
        guide = nn.ParameterDict({"loc": torch.zeros(3), "scale": torch.zeros(3, 3)})

        def loss(x, y):
            scale = torch.tril(guide["scale"], -1) + torch.diag(F.softplus(torch.diagonal(guide["scale"])))
            posterior = D.MultivariateNormal(guide["loc"], scale_tril=scale)
            w = posterior.rsample((4,))
            likely = D.Normal(x @ w.T, 0.5).log_prob(y[:, None]).sum(0)
            prior = D.Independent(D.Normal(torch.zeros(3), torch.ones(3)), 1).log_prob(w)
            return -(likely + prior - posterior.log_prob(w)).mean()

        return World(loss, lambda step: (torch.randn(6 + step, 3), torch.randn(6 + step)), [guide])

    check_steps(make, programs=2)


def test_a_policy_learns_from_batches_of_other_sizes():
    def make():
        policy, value = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)), nn.Linear(4, 1)

        def loss(seen, acted, before, gained, better):
            chosen = D.Categorical(logits=policy(seen))
            better = (better - better.mean()) / (better.std() + 1e-8)
            ratio = (chosen.log_prob(acted) - before).exp()
            surrogate = torch.min(ratio * better, ratio.clamp(0.8, 1.2) * better)
            of_value = F.mse_loss(value(seen).squeeze(-1), gained)
            return -surrogate.mean() + 0.5 * of_value - 0.01 * chosen.entropy().mean()

        def arguments(step):
            n = 8 + step
            return torch.randn(n, 4), torch.randint(0, 3, (n,)), *(torch.randn(n) for _ in range(3))

        return World(loss, arguments, [policy, value])

    check_steps(make, programs=2)
