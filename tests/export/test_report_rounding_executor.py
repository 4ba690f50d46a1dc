"""The rounding executor against torch's half precision, op by op, and onnx's own evaluator."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional as F

from andrea_export.errors import BackendError
from andrea_export.graph import GraphOptions, export_graph, open_graph
from andrea_export.report.rounding_executor import RoundingEvaluator, RoundingSession

HALVES = {
    "fp16": (np.float16, torch.float16, TensorProto.FLOAT16),
    "bf16": (ml_dtypes.bfloat16, torch.bfloat16, TensorProto.BFLOAT16),
}


def model(nodes, inputs, output, onnx_type, constants=None):
    """A graph of `nodes` whose values all have one type."""
    return helper.make_model(
        helper.make_graph(
            nodes,
            "test",
            [helper.make_tensor_value_info(name, onnx_type, None) for name in inputs],
            [helper.make_tensor_value_info(output, onnx_type, None)],
            [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )


def run(nodes, inputs, output, dtype):
    proto = model(nodes, inputs, output, HALVES[dtype][2])
    (result,) = RoundingEvaluator(proto).run([output], inputs)
    assert result.dtype == HALVES[dtype][0]
    return result


@pytest.fixture
def tensors():
    """Random arrays by dtype: tensors("fp16", (2, 3)), and the same as torch tensors."""
    random = np.random.default_rng(0)

    def make(dtype, *shapes):
        numpy_dtype, torch_dtype, _ = HALVES[dtype]
        arrays = [random.standard_normal(shape).astype(numpy_dtype) for shape in shapes]
        return arrays, [torch.from_numpy(a.astype(np.float32)).to(torch_dtype) for a in arrays]

    return make


def same(result, expected, *, ulps=0):
    """Equal, or so many steps of the dtype apart where torch sums in another order."""
    expected = expected.float().numpy()
    result = result.astype(np.float32)
    bits = 10 if ulps and np.abs(result).max() < 1e4 else 7
    np.testing.assert_allclose(result, expected, rtol=ulps * 2.0**-bits, atol=ulps * 2.0**-14)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("op", "torch_op"), [("Add", torch.add), ("Mul", torch.mul), ("Sub", torch.sub)]
)
def test_elementwise_ops_equal_torch_to_the_bit(tensors, dtype, op, torch_op):
    (a, b), (ta, tb) = tensors(dtype, (5, 33), (33,))
    node = helper.make_node(op, ["a", "b"], ["y"])
    same(run([node], {"a": a, "b": b}, "y", dtype), torch_op(ta, tb))


@pytest.mark.parametrize("dtype", HALVES)
def test_matmul_sums_in_float32_and_rounds_once(tensors, dtype):
    (a, b), (ta, tb) = tensors(dtype, (3, 7, 64), (64, 9))
    result = run([helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": a, "b": b}, "y", dtype)
    exact = (ta.double() @ tb.double()).to(ta.dtype).float().numpy()
    # One rounding of the exact product, but where float32 sums to the other side of a tie.
    assert (result.astype(np.float32) == exact).mean() > 0.99
    same(result, ta @ tb, ulps=2)


@pytest.mark.parametrize("dtype", HALVES)
def test_softmax_gelu_and_layer_norm_agree_with_torch(tensors, dtype):
    (x, gamma, beta), (tx, tgamma, tbeta) = tensors(dtype, (4, 48), (48,), (48,))
    softmax = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    same(run([softmax], {"x": x}, "y", dtype), torch.softmax(tx, -1), ulps=1)
    for approximate in ("tanh", "none"):
        gelu = helper.make_node("Gelu", ["x"], ["y"], approximate=approximate)
        expected = F.gelu(tx.float(), approximate=approximate).to(tx.dtype)
        same(run([gelu], {"x": x}, "y", dtype), expected)
    norm = helper.make_node("LayerNormalization", ["x", "g", "b"], ["y"], axis=-1, epsilon=1e-3)
    expected = F.layer_norm(tx, (48,), tgamma, tbeta, 1e-3)
    same(run([norm], {"x": x, "g": gamma, "b": beta}, "y", dtype), expected, ulps=1)


@pytest.mark.parametrize("dtype", HALVES)
def test_an_op_that_nobody_wrote_here_is_rounded_once_too(tensors, dtype):
    (x,), (tx,) = tensors(dtype, (6, 200))
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], keepdims=1)]
    result = run(nodes, {"x": x}, "y", dtype)
    expected = tx.double().mean().to(tx.dtype).float().item()
    assert float(result.astype(np.float32).item()) == pytest.approx(expected, rel=2.0**-7)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_node_rounds(dtype):
    """1 + a third of a step twice: rounded after each addition, the sum never moves."""
    numpy_dtype = HALVES[dtype][0]
    step = float(ml_dtypes.finfo(numpy_dtype).eps)
    one, third = np.array([1.0], numpy_dtype), np.array([step / 3], numpy_dtype)
    nodes = [
        helper.make_node("Add", ["one", "third"], ["sum"]),
        helper.make_node("Add", ["sum", "third"], ["y"]),
    ]
    assert float(run(nodes, {"one": one, "third": third}, "y", dtype)[0]) == 1.0


def test_overflow_becomes_infinite_where_the_runtime_hides_it():
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["product"]),
        helper.make_node("Mul", ["product", "small"], ["y"]),
    ]
    inputs = {
        "a": np.full((1, 64), 50, np.float16),
        "b": np.full((64, 1), 50, np.float16),
        "small": np.array([1e-4], np.float16),
    }
    proto = model(nodes, inputs, "y", TensorProto.FLOAT16)
    (simulated,) = RoundingEvaluator(proto).run(["y"], inputs)
    assert np.isposinf(simulated).all()
    runtime = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert np.isfinite(runtime.run(None, inputs)[0]).all(), "no need for an executor any more"


def test_fp32_equals_the_plain_evaluator(tiny, tmp_path, ids):
    # In standard ops: the plain evaluator finds no meaning for a Gelu inside a function.
    folder = export_graph(tiny, tmp_path / "out", GraphOptions(ops="standard"))
    with RoundingSession(folder) as session:
        logits = session.forward(ids)
    plain = ReferenceEvaluator(onnx.load(folder.model_path))
    (expected,) = plain.run(["logits"], {"input_ids": ids})
    assert logits.dtype == np.float32
    assert np.abs(logits - expected).max() < 1e-5 * np.sqrt((expected**2).mean())


@pytest.mark.parametrize("dtype", HALVES)
def test_plugin_and_standard_ops_give_the_same_bits(tiny, tmp_path, ids, dtype):
    results = []
    for ops in ("plugin", "standard"):
        folder = export_graph(tiny, tmp_path / ops, GraphOptions(dtype=dtype, ops=ops))
        results.append(RoundingSession(folder).forward(ids))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_graph_with_a_cache_starts_with_nothing_past(tiny, tmp_path, ids, dtype):
    options = GraphOptions(dtype=dtype, kv_cache=True)
    cached = RoundingSession(export_graph(tiny, tmp_path / "cached", options)).forward(ids)
    options = GraphOptions(dtype=dtype, opset=24)
    plain = RoundingSession(export_graph(tiny, tmp_path / "plain", options)).forward(ids)
    np.testing.assert_allclose(cached, plain, rtol=0, atol=1e-2 * np.abs(plain).max())


def test_intermediate_results_are_kept_on_request_alone(tiny_folder, ids):
    folder = open_graph(tiny_folder)
    proto = onnx.load(folder.model_path, load_external_data=False)
    evaluator = RoundingEvaluator(proto, folder=folder.path)
    results = evaluator.run(None, {"input_ids": ids}, intermediate=True)
    assert results["blocks.1.attn_sum"].shape == (*ids.shape, folder.config.d_model)
    (alone,) = evaluator.run(None, {"input_ids": ids})
    np.testing.assert_array_equal(alone, results["logits"])


def test_weights_are_mapped_and_not_read(tiny_folder):
    folder = open_graph(tiny_folder)
    proto = onnx.load(folder.model_path, load_external_data=False)
    evaluator = RoundingEvaluator(proto, folder=folder.path)
    weight = evaluator.rt_inits_["wte.weight"]
    assert isinstance(weight.base, np.memmap)


def test_an_unknown_op_is_a_backend_error(tiny, tmp_path):
    folder = export_graph(tiny, tmp_path / "out", GraphOptions(dtype="fp16"))
    proto = onnx.load(folder.model_path, load_external_data=False)
    proto.graph.node[-1].op_type = "NoSuchOp"
    onnx.save(proto, folder.model_path)
    with pytest.raises(BackendError, match=r"onnx cannot load it: .*NoSuchOp"):
        RoundingSession(folder)


def test_truncated_weights_are_a_backend_error(tiny, tmp_path):
    folder = export_graph(tiny, tmp_path / "out", GraphOptions(dtype="fp16"))
    folder.data_path.write_bytes(folder.data_path.read_bytes()[:1000])
    with pytest.raises(BackendError, match="onnx cannot load it"):
        RoundingSession(folder)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_graph_of_last_logits_gives_those_of_every_token(tiny, tmp_path, dtype):
    logits = []
    for which in ("all", "last"):
        options = GraphOptions(kv_cache=True, logits=which, dtype=dtype)
        with RoundingSession(export_graph(tiny, tmp_path / which, options)) as session:
            logits.append(session.forward(np.arange(22).reshape(2, 11)))
    np.testing.assert_array_equal(*logits)
