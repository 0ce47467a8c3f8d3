"""Compiled autograd: what the autograd engine would run in a backward pass, recorded, put into eager PyTorch's
order, and compiled."""
