"""Loops: below the graph, values are functions of their index; kernels are short sequences of loops over rows."""
