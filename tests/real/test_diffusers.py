"""A UNet of diffusers at changing times."""

import pytest
import torch
from steps import World, check_steps

diffusers = pytest.importorskip("diffusers", reason="pip install funcgrad[real]")


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_a_unet_learns_to_denoise(train):
    def make():
        sizes = {
            "sample_size": 8,
            "in_channels": 3,
            "out_channels": 3,
            "layers_per_block": 1,
            "block_out_channels": (8, 16),
        }
        down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
        model = diffusers.UNet2DModel(norm_num_groups=4, down_block_types=down, up_block_types=up, **sizes).train(train)

        def loss(noisy, time, noise):
            return (model(noisy, time).sample - noise).square().mean()

        def arguments(step):
            return torch.randn(1, 3, 8, 8).requires_grad_(), torch.tensor([step + 1]), torch.randn(1, 3, 8, 8)

        return World(loss, arguments, [model])

    check_steps(make, programs=1)


@pytest.mark.parametrize("scheduler", ["EulerDiscreteScheduler", "DDIMScheduler"])
def test_a_sampler_makes_its_schedule(scheduler):
    """Some compute it with NumPy, of a table that they keep: the first call is traced again where a kernel rounds that
    otherwise. The first call finds no step, the next ones the last of the one before."""

    def make():
        sampler, net = getattr(diffusers, scheduler)(num_train_timesteps=20), torch.nn.Conv2d(2, 2, 3, padding=1)

        def sample(x):
            sampler.set_timesteps(2)
            for t in sampler.timesteps:
                x = sampler.step(net(sampler.scale_model_input(x, t)), t, x).prev_sample
            return x.square().mean()

        return World(sample, lambda step: (torch.randn(1, 2, 4, 4),), [net])

    check_steps(make, programs=4 if scheduler == "EulerDiscreteScheduler" else 1)
