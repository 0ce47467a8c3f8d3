"""Training loops and decoders as users write them, with the whole step compiled, or the model: what they compute, and
the state they leave, are those of eager PyTorch over several steps in which inputs and state change."""

import copy
import itertools
from collections import deque

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import funcgrad as fg

PROGRAMS = {}
"""Each takes what compiles a function, and returns what there is to see."""


def program(f):
    PROGRAMS[f.__name__] = f
    return f


def mlp(*sizes, act=nn.Tanh):
    parts = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), act())]
    return nn.Sequential(*parts[:-1])


@program
def adversarial(make):
    generator, critic = mlp(4, 8, 2), mlp(2, 8, 1)
    of_generator, of_critic = (torch.optim.Adam(m.parameters(), 1e-2) for m in (generator, critic))

    @make
    def critic_step(real, z):
        of_critic.zero_grad()
        scores = critic(real), critic(generator(z).detach())
        loss = F.softplus(-scores[0]).mean() + F.softplus(scores[1]).mean()
        loss.backward()
        of_critic.step()
        return loss.detach()

    @make
    def generator_step(z):
        of_generator.zero_grad()
        loss = F.softplus(-critic(generator(z))).mean()
        loss.backward()
        of_generator.step()
        return loss.detach()

    steps = [(critic_step(torch.randn(n, 2), torch.randn(n, 4)), generator_step(torch.randn(n, 4))) for n in (6, 6, 5)]
    return steps, generator.state_dict(), critic.state_dict()


@program
def averaged_weights(make):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    average = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=6)

    @make
    def step(x, y):
        optimiser.zero_grad()
        loss = F.smooth_l1_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        with torch.no_grad():
            for p, q in zip(model.parameters(), average.parameters(), strict=True):
                q.lerp_(p, 0.01)
            for p, q in zip(model.buffers(), average.buffers(), strict=True):
                q.copy_(p)
        return loss.detach()

    losses = []
    for _ in range(5):
        losses.append(step(torch.randn(8, 3), torch.randn(8, 1)))
        schedule.step()
    return losses, model.state_dict(), average.state_dict()


@program
def clipped_policy(make):
    policy, value = nn.Linear(3, 2), nn.Linear(3, 1)
    optimiser = torch.optim.Adam([*policy.parameters(), *value.parameters()], 1e-2)

    @make
    def update(s, a, before, advantage, returns, clip):
        chosen = torch.distributions.Categorical(logits=policy(s))
        ratio = (chosen.log_prob(a) - before).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
        loss = 0.5 * F.mse_loss(value(s).squeeze(-1), returns) - gain - 0.01 * chosen.entropy().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        return loss.item(), ratio.mean().item()

    draws = lambda: (torch.randn(7, 3), torch.randint(2, (7,)), torch.full((7,), -0.7), torch.randn(7), torch.randn(7))  # noqa: E731
    return [update(*draws(), 0.2 - 0.01 * i) for i in range(4)]


@program
def replayed_values(make):
    network = mlp(4, 8, 3, act=nn.ReLU)
    target, memory = copy.deepcopy(network), deque(maxlen=20)
    optimiser = torch.optim.RMSprop(network.parameters(), 1e-2)

    @make
    def learn(s, a, r, after, done):
        with torch.no_grad():
            wanted = r + 0.99 * target(after).max(1).values * (1 - done.float())
        loss = F.smooth_l1_loss(network(s).gather(1, a[:, None]).squeeze(1), wanted)
        optimiser.zero_grad()
        loss.backward()
        for p in network.parameters():
            p.grad.data.clamp_(-1, 1)
        optimiser.step()
        return loss.detach()

    for _ in range(12):
        memory.append((torch.randn(4), torch.randint(3, ()), torch.randn(()), torch.randn(4), torch.rand(()) < 0.2))
    losses = []
    for i in range(4):
        losses.append(learn(*map(torch.stack, zip(*list(memory)[i : i + 8], strict=True))))
        if i == 1:
            target.load_state_dict(network.state_dict())
    return losses, network.state_dict()


@program
def normed_weights(make):
    spectral, weight = nn.utils.parametrizations.spectral_norm, nn.utils.parametrizations.weight_norm
    model = nn.Sequential(spectral(nn.Linear(4, 5)), nn.ReLU(), weight(nn.Linear(5, 2)))
    optimiser, compiled, losses = torch.optim.SGD(model.parameters(), 0.1), make(model), []
    for _ in range(3):
        loss = compiled(torch.randn(3, 4)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    model.eval()
    return losses, compiled(torch.ones(3, 4)).detach(), model.state_dict()


class Adapted(nn.Module):
    """A linear layer with a trained correction of low rank, which may be merged into it."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.merged = layer.requires_grad_(False), False
        self.down = nn.Parameter(torch.randn(2, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, x):
        return self.layer(x) if self.merged else self.layer(x) + x @ self.down.T @ self.up.T

    @torch.no_grad()
    def merge(self):
        self.layer.weight += self.up @ self.down
        self.merged = True


@program
def adapters(make):
    model = nn.Sequential(Adapted(nn.Linear(4, 4)), nn.SiLU(), Adapted(nn.Linear(4, 2)))
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.1)
    compiled = make(model)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(compiled(torch.randn(5, 4)), torch.randint(2, (5,))).backward()
        optimiser.step()
    x = torch.randn(2, 4)
    before = compiled(x).detach()
    model[0].merge()
    model[2].merge()
    return before, compiled(x).detach(), model.state_dict()


class Decoder(nn.Module):
    """Attention over what was decoded, which it keeps."""

    def __init__(self):
        super().__init__()
        self.table, self.projected, self.out, self.kept = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 11), None

    def forward(self, tokens, position):
        q, k, v = self.projected(self.table(tokens)).chunk(3, -1)
        if self.kept is not None:
            k, v = torch.cat([self.kept[0], k], 1), torch.cat([self.kept[1], v], 1)
        self.kept = (k, v)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=position == 0))


@program
def decoding_with_what_was_kept(make):
    decoder = Decoder().eval()
    compiled, tokens = make(decoder), []
    with torch.no_grad():
        logits = compiled(torch.randint(11, (2, 4)), 0)
        for i in range(6):
            best = logits[:, -1].topk(5)
            tokens.append(best.indices.gather(1, torch.multinomial(best.values.softmax(-1), 1)))
            logits = compiled(tokens[-1], 4 + i)
    return tokens, logits, decoder.kept


@program
def decoding_into_memory_of_one_size(make):
    keys, values, weight = torch.zeros(2, 16, 8), torch.zeros(2, 16, 8), torch.randn(8, 24)

    @make
    def step(x, position):
        q, k, v = (x @ weight).chunk(3, -1)
        keys[:, position], values[:, position] = k, v
        seen = torch.arange(16) <= position
        return F.scaled_dot_product_attention(q[:, None], keys, values, attn_mask=seen[None, None]).squeeze(1)

    return [step(torch.randn(2, 8), i) for i in range(8)], keys


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.scale.mul_(0.9).add_(0.1 * self.weight.abs().max())
                self.seen += 1
        return F.linear(x, Rounded.apply(self.weight / self.scale * 7) * self.scale / 7)


@program
def straight_through(make):
    model = Quantised()
    optimiser, compiled = torch.optim.SGD(model.parameters(), 0.1), make(model)
    for _ in range(4):
        optimiser.zero_grad()
        compiled(torch.randn(2, 4)).square().sum().backward()
        optimiser.step()
    model.eval()
    return compiled(torch.ones(1, 4)).detach(), model.state_dict()


@program
def mixture_of_experts(make):
    experts, gate = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 3)

    @make
    def mixed(x):
        weights, chosen = gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(experts):
            row, place = torch.where(chosen == i)
            if row.numel():
                out.index_add_(0, row, expert(x[row]) * weights[row, place, None])
        return out

    found = [mixed(torch.randn(5, 4)) for _ in range(4)]
    sum(y.sum() for y in found).backward()
    return [y.detach() for y in found], [p.grad for p in experts.parameters()], gate.weight.grad


@program
def truncated_in_time(make):
    cell, head = nn.LSTMCell(3, 4), nn.Linear(4, 1)
    optimiser = torch.optim.Adagrad([*cell.parameters(), *head.parameters()], 0.1)

    @make
    def chunk(xs, state, ys):
        loss = 0
        for x, y in zip(xs.unbind(1), ys.unbind(1), strict=True):
            state = cell(x, state)
            loss = loss + F.mse_loss(head(state[0]), y)
        return loss / xs.shape[1], state

    state, losses = (torch.zeros(2, 4), torch.zeros(2, 4)), []
    for _ in range(3):
        loss, state = chunk(torch.randn(2, 5, 3), tuple(s.detach() for s in state), torch.randn(2, 5, 1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return losses, [s.detach() for s in state]


class Orthogonal(torch.optim.Optimizer):
    """Momentum, made orthogonal by Newton and Schulz's iteration; it counts its steps in its state."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                momentum = state.setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 0.1)
                x = momentum / (1 - 0.9 ** state["step"])
                x = x / (x.norm() + 1e-7)
                for _ in range(3):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                p.add_(x, alpha=-group["lr"])


@program
def an_optimiser_of_ones_own(make):
    weights = [nn.Parameter(torch.randn(4, 3)) for _ in range(2)]
    optimiser = Orthogonal(weights, 0.1)

    @make
    def step(x):
        optimiser.zero_grad()
        loss = ((x @ weights[0]).tanh() * (x @ weights[1])).square().mean()
        loss.backward()
        optimiser.step()
        return loss.detach()

    losses = []
    for _ in range(5):
        losses.append(step(torch.randn(2, 4)))
        optimiser.param_groups[0]["lr"] *= 0.9
    return losses, weights, [optimiser.state[w] for w in weights]


def seen_in(name, make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = PROGRAMS[name](make)
    return [v.detach() if isinstance(v, torch.Tensor) else v for v in tree_leaves(found)]


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name):
    for found, expected in zip(seen_in(name, fg.jit), seen_in(name, lambda f: f), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _as_data(flat, layer):
    layer.weight.data, layer.bias.data = flat[:6].view(2, 3), flat[6:]


def _as_parameters(flat, layer):
    layer.weight, layer.bias = torch.nn.Parameter(flat[:6].view(2, 3)), torch.nn.Parameter(flat[6:])


def _update_of_all(flat, layer, gradients):
    flat.sub_(gradients, alpha=0.1)


def _update_of_data(flat, layer, gradients):
    flat.data.sub_(gradients, alpha=0.1)


def _update_of_each(flat, layer, gradients):
    for p in layer.parameters():
        p.sub_(0.1 * p.grad)
    flat.clamp_(-1, 1)


@pytest.mark.parametrize("parts", [_as_data, _as_parameters])
@pytest.mark.parametrize("update", [_update_of_all, _update_of_data, _update_of_each])
@pytest.mark.parametrize("of_buckets", [False, True], ids=["gradients", "buckets"])
def test_parameters_are_parts_of_one_flat_tensor(parts, update, of_buckets):
    def made():
        torch.manual_seed(0)
        layer, flat, buckets = torch.nn.Linear(3, 2), torch.randn(8), torch.zeros(8)
        parts(flat, layer)
        if of_buckets:
            layer.weight.grad, layer.bias.grad = buckets[:6].view(2, 3), buckets[6:]

        def step(x):
            buckets.zero_()
            loss = layer(x).square().mean()
            loss.backward()
            with torch.no_grad():
                update(flat, layer, torch.cat([p.grad.flatten() for p in layer.parameters()]))
            layer.zero_grad(set_to_none=not of_buckets)
            return loss.detach(), flat[2:4]

        return step, flat, layer

    (f, flat, layer), (g, own, its) = made(), made()
    compiled = fg.jit(g)
    for i in range(3):
        x = torch.arange(12.0).view(4, 3) / (10 + i)
        torch.testing.assert_close(compiled(x), f(x))
        torch.testing.assert_close(own, flat)
        for p, q in zip(its.parameters(), layer.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
            assert p.is_leaf and p.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
