"""A training loop as lightning runs it: a module with a training step, its optimiser and its scheduler."""

import pytest
import torch
from steps import World, check_steps

lightning = pytest.importorskip("lightning", reason="pip install funcgrad[real]")


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        # A bias before BatchNorm has rounding noise for a gradient, which Adam would make a step of.
        layers = [
            torch.nn.Linear(4, 8, bias=False),
            torch.nn.BatchNorm1d(8),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(8, 3),
        ]
        self.layers = torch.nn.Sequential(*layers)
        self.seen = 0

    def training_step(self, batch):
        x, y = batch
        self.seen += 1
        return torch.nn.functional.cross_entropy(self.layers(x), y)

    def configure_optimizers(self):
        optimiser = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimiser], [torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 5)]


def test_a_loop_with_a_scheduler_learns():
    models = []

    def make():
        model = Classifier().train()
        (optimiser,), (scheduler,) = model.configure_optimizers()
        models.append(model)

        def loss(x, y):
            return model.training_step((x, y))

        def between(_):
            optimiser.step()
            scheduler.step()

        return World(loss, lambda step: (torch.randn(16, 4), torch.randint(0, 3, (16,))), [model], between)

    check_steps(make, programs=1)
    assert [model.seen for model in models] == [6, 5]  # ours went through one step more


def test_batches_of_other_sizes_are_counted_and_their_losses_are_kept():
    class Counting(Classifier):
        def __init__(self):
            super().__init__()
            self.register_buffer("correct", torch.zeros(()))
            self.losses = []

        def training_step(self, batch):
            x, y = batch
            out = self.layers(x)
            loss = torch.nn.functional.cross_entropy(out, y)
            self.correct += (out.argmax(-1) == y).sum()
            self.losses.append(loss.detach())
            return loss

    models = []

    def make():
        models.append(model := Counting().train())
        (optimiser,), _ = model.configure_optimizers()

        def arguments(step):
            return torch.randn(6 + step, 4), torch.randint(0, 3, (6 + step,))

        return World(lambda x, y: model.training_step((x, y)), arguments, [model], lambda _: optimiser.step())

    check_steps(make, programs=2)
    ours, eager = (torch.stack(model.losses[:5]) for model in models)
    torch.testing.assert_close(ours, eager)


def test_a_metric_counts_its_updates():
    torchmetrics = pytest.importorskip("torchmetrics", reason="pip install funcgrad[real]")
    metrics = []

    def make():
        metrics.append(metric := torchmetrics.MeanSquaredError())
        return World(lambda x, y: metric(x, y), lambda step: (torch.randn(3 + step), torch.randn(3 + step)), [metric])

    check_steps(make, programs=3)
    ours, eager = metrics
    assert ours.update_count == 6 and eager.update_count == 5  # ours went through one step more
    assert ours.total == eager.total + 7


def test_a_metric_that_selects_by_a_mask_of_all_is_few_programs():
    torchmetrics = pytest.importorskip("torchmetrics", reason="pip install funcgrad[real]")

    def make():
        metric = torchmetrics.text.Perplexity()

        def arguments(step):
            return torch.randn(2, 4 + step, 5), torch.randint(0, 5, (2, 4 + step))

        return World(lambda x, y: metric(x, y), arguments, [metric])

    check_steps(make, programs=3)  # its count of updates is a symbol at its third value
