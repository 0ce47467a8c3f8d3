"""From a Python function to a joint graph: one dry run for the facts, one recorded run for the graph."""
