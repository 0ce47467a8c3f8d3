"""Rewritings of joint graphs, before the partition, and tags: what is costed is what runs."""
