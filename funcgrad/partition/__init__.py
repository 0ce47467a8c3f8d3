"""Split a joint graph into forward and backward: what is saved in between, and why."""
