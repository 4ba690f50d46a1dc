"""What is read from a network and from an engine: forms of ops, precision, types."""

import json

import pytest

from andrea_export.engine.network_record import (
    LayerRecord,
    TensorRecord,
    forms_of_ops,
    node_of,
    tensor_types,
)
from andrea_export.engine.precision import check_precision, precision_of
from andrea_export.engine.read_back import check_engine, summarize
from andrea_export.errors import EngineError


def layer(type_, dtype="HALF", name="l", node="", function="", caller=""):
    return LayerRecord(
        name, type_, node, function, caller, (), (TensorRecord(f"{name}.out", dtype, (-1, 4)),)
    )


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("[ONNX Layer: blocks.0.attn.q]", ("blocks.0.attn.q", "", "")),
        (
            "[ONNX Layer: Y/x | blocks.0.norm1 (AndreaLayerNorm)]",
            ("Y/x", "AndreaLayerNorm", "blocks.0.norm1"),
        ),
        ("", ("", "", "")),
    ],
)
def test_onnx_node_is_read_from_what_the_parser_writes_at_a_layer(metadata, expected):
    assert node_of(metadata) == expected


def test_layer_survives_being_written_and_read():
    record = layer("CAST", node="Y/x", function="AndreaGelu", caller="blocks.0.mlp.activation")
    assert LayerRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_tensor_types_are_counted():
    layers = [layer("CAST"), layer("CAST"), layer("CAST", "FLOAT")]
    assert tensor_types(layers) == {"HALF": 2, "FLOAT": 1}


def test_forms_count_nodes_not_layers():
    layers = [
        layer("CAST", function="AndreaGelu", caller="a"),
        layer("ACTIVATION", function="AndreaGelu", caller="a"),
        layer("ACTIVATION", function="AndreaGelu", caller="b"),
        layer("PLUGIN_V3", node="c"),
        layer("PLUGIN_V3", node="d"),
    ]
    ops = {"c": "AndreaGelu", "d": "AndreaLayerNorm"}
    assert forms_of_ops(layers, ops, {"AndreaGelu": 3, "AndreaLayerNorm": 1}) == {
        "AndreaGelu": {"function": 2, "plugin": 1},
        "AndreaLayerNorm": {"plugin": 1},
    }


def test_node_that_took_neither_form_is_counted_as_unknown():
    layers = [layer("CAST", function="AndreaGelu", caller="a")]
    assert forms_of_ops(layers, {}, {"AndreaGelu": 3, "AndreaLayerNorm": 1}) == {
        "AndreaGelu": {"function": 1, "unknown": 2},
        "AndreaLayerNorm": {"unknown": 1},
    }


# Precision


@pytest.mark.parametrize(
    ("types", "precision"),
    [(["HALF"], "fp16"), (["BF16", "BF16"], "bf16"), (["FLOAT", "HALF"], "mixed"), ([], "none")],
)
def test_precision_is_what_all_matrix_products_compute_in(types, precision):
    layers = [layer("MATRIX_MULTIPLY", type_) for type_ in types]
    assert precision_of([*layers, layer("NORMALIZATION", "FLOAT")]) == precision


def test_shape_arithmetic_is_no_matrix_product():
    assert precision_of([layer("MATRIX_MULTIPLY"), layer("EINSUM", "INT64")]) == "fp16"


def test_asking_fp16_and_getting_fp32_is_an_error():
    layers = [layer("MATRIX_MULTIPLY", "FLOAT", node="blocks.0.attn.q")] * 2
    check_precision(layers, "fp32")
    with pytest.raises(EngineError, match=r"fp16 was asked .*: 2 FLOAT, 1 HALF .*blocks.0.attn.q"):
        check_precision([*layers, layer("MATRIX_MULTIPLY")], "fp16")


# Shape of the inspector's JSON: TensorRT's developer guide, "Engine Inspector".
INSPECTED = json.dumps(
    {
        "Layers": [
            {
                "Name": "fc1",
                "LayerType": "gemm",
                "Outputs": [{"Name": "a", "Format/Datatype": "Row major linear FP16 format"}],
            },
            {
                "Name": "norm",
                "LayerType": "kgen",
                "Outputs": [
                    {"Name": "b", "Format/Datatype": "Half"},
                    {"Name": "c", "Format/Datatype": "Float"},
                ],
            },
        ],
        "Bindings": ["input_ids", "logits"],
    }
)


def test_types_of_a_built_engine_are_counted_from_the_inspector():
    summary = summarize(INSPECTED)
    assert summary["tensor_types"] == {"HALF": 2, "FLOAT": 1}
    assert summary["layer_types"] == {"gemm": 1, "kgen": 1}
    check_engine(summary, "fp16")


def many_layers(words):
    """The inspector's JSON of an engine of twelve layers."""
    output = {"Name": "a", "Format/Datatype": words}
    return json.dumps({"Layers": [{"LayerType": "gemm", "Outputs": [output]}] * 12})


def test_built_engine_without_any_half_tensor_is_refused():
    with pytest.raises(EngineError, match=r"fp16 was asked for, .* no HALF tensor: 12 FLOAT"):
        check_engine(summarize(many_layers("Float")), "fp16")
    check_engine(summarize(many_layers("Float")), "fp32")
    check_engine(summarize(many_layers("Half")), "fp16")


def test_engine_fused_into_a_few_nodes_is_no_evidence():
    fused = {"LayerType": "Myelin", "Outputs": [{"Name": "logits", "Format/Datatype": "Float"}]}
    check_engine(summarize(json.dumps({"Layers": [fused]})), "fp16")


def test_unreadable_description_of_an_engine_is_told():
    with pytest.raises(EngineError, match="description of the engine is not readable"):
        summarize("no JSON")
