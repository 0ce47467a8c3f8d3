"""Training loops as people write them, five steps in eager PyTorch and five with captured backward passes: the same
parameters in the end, gradients, optimiser states and all that a hook sees; and no graph is captured again for what
is the same in each step."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import funcgrad as fg
from funcgrad.engine import region as regions


def mlp(*sizes, act=nn.Tanh):
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), act())]
    return nn.Sequential(*layers[:-1])


def batches(n=5, rows=6, columns=4):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(rows, columns, generator=generator), torch.randn(rows, 1, generator=generator)) for _ in range(n)
    ]


def state(*things):
    """All tensors of models and optimisers, and gradients."""
    found = []
    for thing in things:
        if isinstance(thing, torch.optim.Optimizer):
            found += [v for s in thing.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        else:
            found += [t.detach().clone() for t in thing.state_dict().values()]
            found += [p.grad for p in thing.parameters()]
    return found


def accumulation():
    """Over three micro-batches, with clipping between."""
    model = mlp(4, 8, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    norms = []
    for x, y in batches():
        optimizer.zero_grad()
        for part in range(3):
            rows = slice(2 * part, 2 * part + 2)
            (F.mse_loss(model(x[rows]), y[rows]) / 3).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
    return [*norms, *state(model, optimizer)]


def zeroed():
    """``zero_grad(set_to_none=False)``."""
    model = mlp(4, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    for x, y in batches():
        optimizer.zero_grad(set_to_none=False)
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return state(model, optimizer)


def optimiser_in_backward():
    model = mlp(4, 8, 1)
    optimizers = {p: torch.optim.Adam([p], 1e-2, foreach=False) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for x, y in batches():
        F.mse_loss(model(x), y).backward()
    return [*state(model), *(t for o in optimizers.values() for t in state(o))]


def buckets():
    """As DDP does: the last gradient of a bucket has all of it reduced, into views of one buffer that gradients
    become."""
    model = mlp(4, 8, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    parameters = list(model.parameters())
    groups = [parameters[3:][::-1], parameters[:3][::-1]]
    flat = [torch.zeros(sum(p.numel() for p in group)) for group in groups]
    ready, log = [0, 0], []

    def reduce(b):
        flat[b].div_(2)
        log.append(flat[b].clone())

    for b, group in enumerate(groups):
        at = 0
        for p in group:
            view = flat[b][at : at + p.numel()].view_as(p)
            at += p.numel()

            def hook(p, b=b, view=view):
                view.copy_(p.grad)
                p.grad = view
                ready[b] += 1
                if ready[b] == len(groups[b]):
                    reduce(b)
                    ready[b] = 0
                    torch.autograd.Variable._execution_engine.queue_callback(lambda: log.append(flat[b].sum()))

            p.register_post_accumulate_grad_hook(hook)
    for x, y in batches():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return [*log, *state(model)]


def sharded():
    """As FSDP does: parameters are gathered before they are used, their memory is freed after, and gradients are
    scattered in a hook."""
    model = mlp(4, 8, 1)
    shards = {name: nn.Parameter(p.detach().flatten().clone()) for name, p in model.named_parameters()}
    shapes = {name: p.shape for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(shards.values(), 1e-2)
    log = []
    for x, y in batches():
        whole = {name: p.detach().clone().view(shapes[name]).requires_grad_() for name, p in shards.items()}
        for name, p in whole.items():

            def scatter(grad, name=name, p=p):
                shards[name].grad = grad.flatten()
                log.append(name)

            p.register_hook(scatter)
        F.mse_loss(torch.func.functional_call(model, whole, (x,)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*shards.values(), torch.tensor([len(name) for name in log])]


def parametrised():
    model = mlp(4, 8, 8, 1)
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.spectral_norm(model[2])
    nn.utils.parametrizations.orthogonal(model[4])
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for x, y in batches():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return state(model)


def checkpointed(use_reentrant):
    blocks = nn.ModuleList(mlp(4, 8, 4) for _ in range(3))
    head = nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*blocks.parameters(), *head.parameters()], 1e-2)
    for x, y in batches():
        optimizer.zero_grad()
        h = x.requires_grad_()
        for block in blocks:
            h = h + checkpoint(block, h, use_reentrant=use_reentrant)
        F.mse_loss(head(h), y).backward()
        optimizer.step()
    return state(blocks, head)


def mixed_precision():
    model = mlp(4, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return [*state(model), torch.tensor(scaler.get_scale())]


def tied():
    embedding = nn.Embedding(10, 8)
    head = nn.Linear(8, 10, bias=False)
    head.weight = embedding.weight
    optimizer = torch.optim.AdamW(embedding.parameters(), 1e-2)
    tokens = torch.arange(12).reshape(3, 4) % 10
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(head(embedding(tokens)).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    return state(embedding, optimizer)


def frozen():
    """Layers are frozen, and thawed again."""
    model = mlp(4, 8, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    for i, (x, y) in enumerate(batches()):
        model[0].requires_grad_(i >= 2)
        model[2].weight.requires_grad_(i != 3)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return state(model, optimizer)


def several_losses():
    """One trunk, two heads, weights of losses from gradient norms, and ``retain_graph``."""
    trunk, heads = mlp(4, 8, 8), nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])
    optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], 1e-2)
    norms = []
    for x, y in batches():
        optimizer.zero_grad()
        h = trunk(x)
        losses = [F.mse_loss(head(h), y * (i + 1)) for i, head in enumerate(heads)]
        weights = [torch.autograd.grad(loss, trunk[-1].weight, retain_graph=True)[0].norm() for loss in losses]
        norms += weights
        (losses[0] * weights[1] + losses[1] * weights[0]).backward(retain_graph=True)
        losses[0].backward()
        torch.autograd.backward(
            [losses[1], h.sum()], [torch.tensor(2.0), None], retain_graph=True, inputs=[heads[1].weight]
        )
        optimizer.step()
    return [*norms, *state(trunk, heads)]


def adversarial():
    """A generator and a discriminator, each with an optimiser."""
    maker, judge = mlp(4, 8, 4), mlp(4, 8, 1, act=nn.LeakyReLU)
    ours, theirs = torch.optim.Adam(maker.parameters(), 1e-2), torch.optim.Adam(judge.parameters(), 1e-2)
    for x, y in batches():
        theirs.zero_grad()
        made = maker(x)
        real = F.binary_cross_entropy_with_logits(judge(x), torch.ones_like(y))
        false = F.binary_cross_entropy_with_logits(judge(made.detach()), torch.zeros_like(y))
        (real + false).backward()
        theirs.step()
        ours.zero_grad()
        F.binary_cross_entropy_with_logits(judge(made), torch.ones_like(y)).backward()
        ours.step()
    return state(maker, judge, ours, theirs)


def penalised():
    """A penalty on the gradient of inputs: a backward pass that is differentiated."""
    judge = mlp(4, 8, 1)
    optimizer = torch.optim.SGD(judge.parameters(), 1e-2)
    for x, y in batches():
        optimizer.zero_grad()
        x.requires_grad_()
        out = judge(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (F.mse_loss(out, y) + (grad.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
    return state(judge)


def recurrent():
    model = nn.LSTM(4, 8, 2, batch_first=True)
    head = nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 1e-2)
    carried = None
    for x, y in batches():
        optimizer.zero_grad()
        out, carried = model(x[None], carried)
        carried = tuple(t.detach() for t in carried)
        F.mse_loss(head(out[0]), y).backward()
        optimizer.step()
    return state(model, head)


def averaged():
    """Weights averaged beside, a schedule, batch normalisation, dropout."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), 1e-1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6)
    for x, y in batches():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
    return state(model, average)


def second_order():
    """L-BFGS, which calls backward as often as it likes."""
    model = mlp(4, 8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for x, y in batches():

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return state(model)


def offloaded():
    """What is saved waits elsewhere, in half precision."""
    model = mlp(4, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to(torch.bfloat16), lambda t: t.float()):
            loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return state(model)


def changing_batches():
    """The last batch is smaller, in every epoch."""
    model = mlp(4, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for n in (6, 6, 3, 6, 6, 3, 5, 4):
        x, y = batches(1, rows=n)[0]
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return state(model)


def reversed_gradients():
    """Domain adaptation: a custom function that turns gradients round, of a strength that grows."""

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, strength):
            ctx.strength = strength
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return -ctx.strength * g, None

    trunk, head, other = mlp(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters(), *other.parameters()], 1e-2)
    for i, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        h = trunk(x)
        (F.mse_loss(head(h), y) + F.mse_loss(other(Reverse.apply(h, i / 5)), -y)).backward()
        optimizer.step()
    return state(trunk, head, other)


def compiled_model():
    """A model that is compiled, with its optimiser outside."""
    model = mlp(4, 8, 1)
    forward = fg.jit(lambda x, y: F.mse_loss(model(x), y), backend="aten")
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for x, y in batches():
        optimizer.zero_grad()
        forward(x, y).backward()
        optimizer.step()
    return state(model, optimizer)


def recorded_norms():
    """Full backward hooks of modules, which see gradients of their inputs and outputs."""
    model = mlp(4, 8, 1)
    log = []
    for layer in model:
        layer.register_full_backward_hook(
            lambda m, ins, outs: log.extend(g.norm() for g in (*ins, *outs) if g is not None)
        )
        layer.register_full_backward_pre_hook(lambda m, outs: log.extend(g.sum() for g in outs))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for x, y in batches():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return [*log, *state(model)]


LOOPS = {
    "accumulation": (accumulation, 2), "zeroed": (zeroed, 2), "optimiser in backward": (optimiser_in_backward, 1),
    "buckets": (buckets, 1),
    "sharded": (sharded, 1), "parametrised": (parametrised, 1), "checkpointed": (lambda: checkpointed(False), 1),
    "checkpointed, reentrant": (lambda: checkpointed(True), 1), "mixed precision": (mixed_precision, 1),
    "tied": (tied, 1),
    "frozen": (frozen, 3), "several losses": (several_losses, 4), "adversarial": (adversarial, 2),
    "penalised": (penalised, 1),
    "recurrent": (recurrent, 1), "averaged": (averaged, 1), "second order": (second_order, 1),
    "offloaded": (offloaded, 1),
    "changing batches": (changing_batches, 2), "reversed gradients": (reversed_gradients, 1),
    "compiled": (compiled_model, 1),
    "recorded norms": (recorded_norms, 1),
}  # fmt: skip
"""With how many programs each has: one for each graph, and one more where it differs whether leaves have gradients,
or a size."""

REPLAYED = {"penalised": "the backward pass is itself differentiated"}


@pytest.mark.parametrize("name", LOOPS)
def test_training_loops(name):
    loop, programs = LOOPS[name]

    def run():
        torch.manual_seed(0)
        return loop()

    wanted = run()
    regions.reset()
    with fg.compiled_autograd(backend="aten") as region:
        found = run()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert region.compiles == programs, region.explain()
    replayed = {
        event.why for event in region.events if event.what == "replayed" and "learnt in a first run" not in event.why
    }
    assert len(replayed) == (name in REPLAYED) and all(REPLAYED[name] in why for why in replayed), region.explain()
