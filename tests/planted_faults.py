"""Faults for an exported graph, one at a time, each with the module where it begins."""

import dataclasses
import itertools
import math
import shutil

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from andrea_export.graph import open_graph
from andrea_model import random_checkpoint


def lively(config, seed=3):
    """Random weights as large as trained ones (small ones make attention a mere average), with
    gammas and betas that are not all alike."""
    checkpoint = random_checkpoint("andrea-nano", seed, config=config)
    random = np.random.default_rng(seed)
    lively = {}
    for name, array in checkpoint.tensors.items():
        if array.ndim == 2:
            lively[name] = array * np.float32(6)
        else:
            lively[name] = array + random.normal(0, 0.1, array.shape).astype(np.float32)
    return dataclasses.replace(checkpoint, tensors=lively)


class Graph:
    """The nodes of a model by name, and the ways to spoil them."""

    def __init__(self, model):
        self.graph = model.graph
        self.nodes = {node.name: node for node in model.graph.node}
        self.counter = itertools.count()

    def set(self, node, attribute, value):
        """Replace an attribute."""
        kept = [each for each in self.nodes[node].attribute if each.name != attribute]
        del self.nodes[node].attribute[:]
        self.nodes[node].attribute.extend([*kept, helper.make_attribute(attribute, value)])

    def reroute(self, node, index, op, *more, **attributes):
        """Put one node of `op` before an input."""
        inputs = self.nodes[node].input
        name = f"fault{next(self.counter)}"
        fault = helper.make_node(op, [inputs[index], *more], [name], **attributes)
        self.graph.node.insert(list(self.graph.node).index(self.nodes[node]), fault)
        inputs[index] = name

    def integer(self, value):
        """The name of a new int64 constant."""
        return self._constant(np.array(value, np.int64))

    def number(self, value):
        """The name of a new constant of the graph's own float type."""
        (norm,) = (each for each in self.graph.initializer if each.name == "norm_f.weight")
        return self._constant(np.array(value, helper.tensor_dtype_to_np_dtype(norm.data_type)))

    def _constant(self, array):
        name = f"fault{next(self.counter)}"
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is done to a graph, and the first tap that must show it (None: no module's)."""

    name: str
    plant: object
    place: str | None

    def __str__(self):
        return self.name


def spoiled(folder, place, plant):
    """A copy of an exported folder with one fault in its graph."""
    shutil.copytree(folder.path, place)
    model = onnx.load(place / "model.onnx", load_external_data=False)
    plant(Graph(model))
    onnx.save(model, place / "model.onnx")
    return open_graph(place)


def with_weights(folder, place, change):
    """A copy of an exported folder whose external data is changed: change(name, array) → array."""
    shutil.copytree(folder.path, place)
    model = onnx.load(place / "model.onnx", load_external_data=False)
    with (place / "model.onnx.data").open("r+b") as file:
        for tensor in model.graph.initializer:
            where = {each.key: int(each.value) for each in tensor.external_data[1:]}
            dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            file.seek(where["offset"])
            old = np.frombuffer(file.read(where["length"]), dtype).reshape(tensor.dims)
            new = change(tensor.name, old)
            if new is not None:
                file.seek(where["offset"])
                file.write(np.ascontiguousarray(new, dtype).tobytes())
    return open_graph(place)


def erf_gelu(i):
    return Fault(
        f"erf GELU in block {i}",
        lambda graph: graph.set(f"blocks.{i}.mlp.activation", "approximate", "none"),
        f"blocks.{i}.mlp.activation",
    )


def norm_epsilon(norm, epsilon):
    return Fault(
        f"epsilon {epsilon:g} in {norm}", lambda graph: graph.set(norm, "epsilon", epsilon), norm
    )


def swapped_gamma_and_beta(norm):
    def plant(graph):
        inputs = graph.nodes[norm].input
        inputs[-2], inputs[-1] = inputs[-1], inputs[-2]

    return Fault(f"gamma and beta swapped in {norm}", plant, norm)


def unbiased_variance(norm, d_model):
    """1/(d-1) in place of 1/d: all that changes is gamma's factor, sqrt((d-1)/d)."""

    def plant(graph):
        factor = graph.number(math.sqrt((d_model - 1) / d_model))
        graph.reroute(norm, len(graph.nodes[norm].input) - 2, "Mul", factor)

    return Fault(f"unbiased variance in {norm}", plant, norm)


def dropped_residual(block, norm, total):
    """The sum keeps its update alone."""
    return Fault(
        f"no residual in blocks.{block}.{total}",
        lambda graph: graph.reroute(norm, 1, "Mul", graph.number(0.0)),
        f"blocks.{block}.{total}",
    )


def shifted_positions():
    return Fault(
        "positions shifted by one",
        lambda graph: graph.reroute("wpe", 1, "Add", graph.integer(1)),
        "embedding",
    )


def leaking_mask():
    return Fault(
        "mask leaks one future token",
        lambda graph: graph.reroute("mask/seen", 1, "Add", graph.integer(1)),
        "blocks.0.attn.context",
    )


def transposed(i, leaf):
    return Fault(
        f"{leaf} transposed in block {i}",
        lambda graph: graph.reroute(f"blocks.{i}.attn.{leaf}", 1, "Transpose", perm=[1, 0]),
        f"blocks.{i}.attn.{leaf}",
    )


def attention_scale(i, factor):
    return Fault(
        f"attention scale times {factor:g} in block {i}",
        lambda graph: graph.reroute(f"blocks.{i}.attn.scores", 0, "Mul", graph.number(factor)),
        f"blocks.{i}.attn.context",
    )


def last_layer_skipped(n_layer):
    def plant(graph):
        graph.reroute(f"blocks.{n_layer - 1}.norm2", 0, "Mul", graph.number(0.0))
        graph.reroute("norm_f", 0, "Mul", graph.number(0.0))

    return Fault("last layer skipped", plant, f"blocks.{n_layer - 1}.attn_sum")


def overflow(i):
    """Up and back again: nothing changes, unless the type ends in between."""

    def plant(graph):
        graph.reroute(f"blocks.{i}.mlp.fc1", 0, "Mul", graph.number(2.0**15))
        graph.reroute(f"blocks.{i}.mlp.fc1", 0, "Mul", graph.number(2.0**-15))

    return Fault(f"overflow in block {i}", plant, f"blocks.{i}.mlp.activation")


def stale_slot():
    """A token after the first sees one slot beyond its own: empty, or left from a pad."""

    def plant(graph):
        graph.reroute("mask/query", 0, "Add", "fault-past")
        sign = helper.make_node("Sign", ["past_length"], ["fault-sign"])
        column = helper.make_node("Unsqueeze", ["fault-sign", graph.integer([1])], ["fault-past"])
        for node in (column, sign):
            graph.graph.node.insert(0, node)

    return Fault("a stale slot of the cache is read", plant, None)


def wrong_row(row, factor):
    """One row of the embedding off by a factor."""

    def change(name, array):
        if name != "wte.weight":
            return None
        new = array.copy()
        new[row] = (new[row].astype(np.float32) * factor).astype(array.dtype)
        return new

    return change


def fp8_weights(i):
    """The matrices of one block rounded to float8 e4m3."""

    def change(name, array):
        if not name.startswith(f"blocks.{i}.") or array.ndim < 2:
            return None
        return array.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(array.dtype)

    return change


# Faults with a size, from one that matters down to nothing: size → what is done to the graph.
SIZED = {
    "attention scale": lambda size: (
        lambda graph: graph.reroute("blocks.1.attn.scores", 0, "Mul", graph.number(1 + size))
    ),
    "activation": lambda size: (
        lambda graph: graph.reroute("blocks.1.mlp.fc2/matmul", 0, "Mul", graph.number(1 + size))
    ),
    "gamma": lambda size: (
        lambda graph: graph.reroute("blocks.2.norm1", 2, "Mul", graph.number(1 + size))
    ),
    "beta": lambda size: (
        lambda graph: graph.reroute("blocks.0.norm2", 3, "Add", graph.number(size))
    ),
    "residual": lambda size: (
        lambda graph: graph.reroute("blocks.1.norm2", 1, "Mul", graph.number(1 - size))
    ),
    "epsilon": lambda size: lambda graph: graph.set("norm_f", "epsilon", 1e-5 + size),
}
