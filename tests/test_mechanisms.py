"""Mechanisms that no other test shows. The ids are those of ``docs/mechanisms.md``."""

import torch

import funcgrad as fg
from funcgrad.slots import Grad, Saved


def kinds(graphs):
    return {type(slot) for graph in graphs for slot in graph.signature.outs}


def python(program):
    return [source for source in program.sources if source.language == "python"]


def test_a_call_under_no_grad_compiles_no_backward():  # S2-19
    w = torch.randn(4, requires_grad=True)
    c = fg.jit(lambda w: w.sin().exp())

    with torch.no_grad():
        inference = c.program(w)
        assert not c(w).requires_grad
    assert len(inference.kernels) == len(python(inference)) == 1
    assert kinds([inference.joint.graph, inference.partition.forward, inference.partition.backward]).isdisjoint(
        {Grad, Saved}
    )
    assert not inference.partition.backward.signature.outs
    assert not any("cos" in str(node.target) for node in inference.joint.graph.fx.nodes)

    training = c.program(w)  # the same call where autograd is on: two halves
    assert training is not inference
    assert len(training.kernels) == len(python(training)) == 2
    assert Grad in kinds([training.partition.backward])
    assert any("cos" in str(node.target) for node in training.joint.graph.fx.nodes)
    assert c(w).requires_grad
