"""What the exported file promises to every runtime and reader, apart from its numbers."""

import json
from collections import Counter

import numpy as np
import onnx
import pytest

from andrea_export.errors import GraphError
from andrea_export.graph import GraphOptions, open_graph
from andrea_model import PRESETS
from andrea_model.parameters import parameter_shapes

CUSTOM = {"AndreaLayerNorm", "AndreaAddLayerNorm", "AndreaGelu", "AndreaBiasGelu"}


def structure(folder):
    return onnx.load(folder.model_path, load_external_data=False)


def counts(folder):
    nodes = structure(folder).graph.node
    return Counter(node.op_type for node in nodes if node.domain == "andrea")


def test_inputs_and_outputs_are_those_of_the_contract(tiny_folder):
    graph = structure(open_graph(tiny_folder)).graph

    def described(value):
        tensor = value.type.tensor_type
        dims = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
        return value.name, tensor.elem_type, dims

    assert [described(value) for value in graph.input] == [
        ("input_ids", onnx.TensorProto.INT64, ["batch", "sequence"])
    ]
    assert [described(value) for value in graph.output] == [
        ("logits", onnx.TensorProto.FLOAT, ["batch", "sequence", 97])
    ]


def test_custom_ops_of_the_lessons_model_take_in_every_addition_and_bias(export):
    config = PRESETS["andrea-120m"].replace(vocab_size=64, context_length=16, d_model=24)
    _, folder = export(config)
    assert counts(folder) == {
        "AndreaLayerNorm": 1,
        "AndreaAddLayerNorm": 24,
        "AndreaBiasGelu": 12,
    }
    # What is left: the embedding's own sum and the mask on the scores; no residual, no MLP bias
    # other than fc2's.
    adds = [node.name for node in structure(folder).graph.node if node.op_type == "Add"]
    assert Counter(name.split(".", 2)[-1] for name in adds) == {
        "embedding": 1,
        "attn.scores/masked": 12,
        "mlp.fc2": 12,
    }


def test_custom_ops_of_a_post_norm_model_are_one_per_sum(tiny, export):
    _, folder = export(tiny.config.replace(norm_position="post", bias="none"))
    assert counts(folder) == {"AndreaLayerNorm": 1, "AndreaAddLayerNorm": 6, "AndreaGelu": 3}


@pytest.mark.parametrize("opset", [20, 21, 22, 23, 24])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_model_passes_the_full_check_and_its_functions_share_its_opset(tiny, export, dtype, opset):
    _, folder = export(tiny.config, dtype=dtype, opset=opset)
    onnx.checker.check_model(folder.model_path, full_check=True)
    model = structure(folder)
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": opset, "andrea": 1}
    assert len(model.functions) == 3
    for function in model.functions:
        assert [entry.version for entry in function.opset_import if not entry.domain] == [opset]


def test_every_custom_node_names_its_plugin_and_carries_its_definition(tiny, export):
    _, folder = export(tiny.config)
    model = structure(folder)
    functions = {(f.domain, f.name): f for f in model.functions}
    for node in (node for node in model.graph.node if node.domain):
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        assert attributes["plugin_namespace"] == b"andrea"
        assert attributes["plugin_version"] == b"1"
        function = functions["andrea", node.op_type]
        assert set(attributes) == set(function.attribute)
        assert len(function.input) == len(node.input)
        assert len(function.output) == len(node.output)
        names = [inner.name for inner in function.node]
        assert len(set(names)) == len(names)


def test_attributes_of_custom_nodes_come_from_the_config(tiny, export):
    _, folder = export(tiny.config.replace(norm_eps=3e-4, activation="gelu_erf"))
    seen = {}
    for node in structure(folder).graph.node:
        for attribute in node.attribute if node.domain else ():
            value = onnx.helper.get_attribute_value(attribute)
            seen.setdefault(attribute.name, set()).add(value)
    assert seen["approximate"] == {b"none"}
    assert list(seen["epsilon"]) == pytest.approx([3e-4], rel=1e-6)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_standard_ops_leave_nothing_custom(tiny, export, dtype):
    _, folder = export(tiny.config, ops="standard", dtype=dtype)
    model = structure(folder)
    assert {node.domain for node in model.graph.node} == {""}
    assert not model.functions
    assert not CUSTOM & {node.op_type for node in model.graph.node}
    onnx.checker.check_model(folder.model_path, full_check=True)


@pytest.mark.parametrize("ops", ["plugin", "standard"])
def test_initializers_are_the_checkpoints_tensors_by_name_and_a_tied_head_is_stored_once(
    tiny, export, ops
):
    _, folder = export(tiny.config, ops=ops)
    initializers = structure(folder).graph.initializer
    assert {i.name: tuple(i.dims) for i in initializers} == parameter_shapes(tiny.config)
    assert all(i.data_location == onnx.TensorProto.EXTERNAL for i in initializers)
    weights = sum(4 * int(np.prod(i.dims)) for i in initializers)
    assert folder.data_path.stat().st_size == weights


@pytest.mark.parametrize("ops", ["plugin", "standard"])
def test_nodes_and_values_carry_their_modules_names(tiny, export, ops):
    _, folder = export(tiny.config.replace(bias="all", tied_head=False), ops=ops)
    graph = structure(folder).graph
    names = [node.name for node in graph.node]
    assert len(set(names)) == len(names)
    values = {output for node in graph.node for output in node.output}
    modules = {"wte", "wpe", "norm_f"}
    for i in range(3):
        modules |= {f"blocks.{i}.{leaf}" for leaf in ("norm1", "norm2", "mlp.fc2")}
        modules |= {f"blocks.{i}.attn.{leaf}" for leaf in "qkvo"}
    assert modules <= values
    assert all(node.name == node.output[0] for node in graph.node if ops == "plugin")


def test_half_precision_bodies_normalise_in_float32(tiny, export):
    _, folder = export(tiny.config, dtype="fp16")
    for function in structure(folder).functions:
        casts = [node for node in function.node if node.op_type == "Cast"]
        targets = [onnx.helper.get_attribute_value(node.attribute[0]) for node in casts]
        assert targets.count(onnx.TensorProto.FLOAT16) == 1  # the result, rounded once
        assert targets.count(onnx.TensorProto.FLOAT) == len(casts) - 1 >= 1


def test_missing_gamma_and_beta_are_given_as_ones_and_zeros(tiny, export):
    _, folder = export(tiny.config.replace(norm_affine="none"))
    model = structure(folder)
    constants = {
        node.output[0]: onnx.numpy_helper.to_array(node.attribute[0].t)
        for node in model.graph.node
        if node.op_type == "Constant"
    }
    norms = [n for n in model.graph.node if n.op_type.endswith("LayerNorm")]
    assert len(norms) == 7
    for node in norms:
        assert (constants[node.input[-2]] == np.ones(40, np.float32)).all()
        assert (constants[node.input[-1]] == np.zeros(40, np.float32)).all()


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_two_exports_are_the_same_to_the_byte(tiny, export, dtype):
    _, one = export(tiny.config, "one", dtype=dtype)
    _, two = export(tiny.config, "two", dtype=dtype)
    names = sorted(path.name for path in one.path.iterdir())
    assert names == sorted(path.name for path in two.path.iterdir())
    for name in names:
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes(), name


def test_record_tells_random_weights_from_trained_ones(tiny, export):
    _, folder = export(tiny.config)
    record = json.loads((folder.path / "export.json").read_text())
    assert record["checkpoint"]["format"] == "random"
    assert record["checkpoint"]["random_weights_seed"] == 3
    assert "not a trained model" in record["checkpoint"]["warning"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, r"dtype 'int8' is not one of fp32, fp16, bf16 \(int8 and fp8 are not"),
        ({"dtype": "fp64"}, "dtype 'fp64' is not one of fp32, fp16, bf16$"),
        ({"ops": "cuda"}, "ops 'cuda' is not one of plugin, standard"),
        ({"opset": 19}, "opset 19 is not between 20 and 24"),
        ({"opset": 25}, "opset 25 is not between 20 and 24"),
    ],
)
def test_options_outside_the_contract_are_refused(options, message):
    with pytest.raises(GraphError, match=message):
        GraphOptions(**options)


def test_weight_too_large_for_half_is_named_and_nothing_is_written(tmp_path, tiny):
    from dataclasses import replace

    from andrea_export.graph import export_graph

    tensors = {name: np.array(value) for name, value in tiny.tensors.items()}
    tensors["blocks.1.mlp.fc1.weight"][2, 3] = 70000.0
    large = replace(tiny, tensors=tensors)
    message = r"blocks\.1\.mlp\.fc1\.weight does not fit float16.*7e\+04.*6\.55e\+04"
    with pytest.raises(GraphError, match=message):
        export_graph(large, tmp_path / "out", GraphOptions(dtype="fp16"))
    assert list(tmp_path.iterdir()) == []
    export_graph(large, tmp_path / "out", GraphOptions(dtype="bf16"))
