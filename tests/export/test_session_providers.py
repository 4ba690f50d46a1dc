"""ONNX Runtime's providers: what is asked for, and what really runs each node."""

from collections import Counter

import onnx
import pytest

from andrea_export.errors import BackendError
from andrea_export.graph import open_graph
from andrea_export.session import open_session
from andrea_export.session.providers import PROVIDERS, Placement, provider_arguments

pytest.importorskip("onnxruntime")
CPU, CUDA, TENSORRT = (PROVIDERS[name] for name in ("cpu", "cuda", "tensorrt"))


def test_providers_may_take_nodes_in_their_order():
    assert provider_arguments("cpu", [CPU]) == [(CPU, {})]
    assert provider_arguments("cuda", [TENSORRT, CUDA, CPU]) == [(CUDA, {}), (CPU, {})]
    assert provider_arguments("tensorrt", [TENSORRT, CUDA, CPU]) == [
        (TENSORRT, {}),
        (CUDA, {}),
        (CPU, {}),
    ]


def test_plugin_library_goes_to_the_tensorrt_provider_alone(tmp_path):
    library = tmp_path / "libandrea_plugins.so"
    (first, *others) = provider_arguments("tensorrt", [TENSORRT, CUDA, CPU], library)
    assert first == (TENSORRT, {"trt_extra_plugin_lib_paths": str(library)})
    assert all(options == {} for _, options in others)
    with pytest.raises(BackendError, match="the cuda provider takes no plugin library"):
        provider_arguments("cuda", [CUDA, CPU], library)


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ("rocm", "provider 'rocm' is not one of cpu, cuda, tensorrt"),
        ("cuda", r"has no cuda provider \(it has CPUExecutionProvider\): pip install .*\[gpu\]"),
    ],
)
def test_provider_that_is_not_there_is_refused(provider, message):
    with pytest.raises(BackendError, match=message):
        provider_arguments(provider, [CPU])


def test_session_knows_which_provider_runs_each_node(tiny_folder):
    graph = onnx.load(tiny_folder / "model.onnx", load_external_data=False).graph
    with open_session(open_graph(tiny_folder)) as session:
        placement = session.placement
    assert set(placement.ops) == {CPU}
    # MatMuls cannot be inlined from a function or folded away.
    products = Counter(node.op_type for node in graph.node)["MatMul"]
    assert (
        placement.ops[CPU].get("MatMul", 0) + placement.ops[CPU].get("FusedMatMul", 0) == products
    )


def test_what_fell_back_is_told_apart_from_arithmetic_of_shapes():
    placement = Placement({CUDA: {"MatMul": 24}, CPU: {"Shape": 3, "Range": 1, "Gelu": 2}})
    assert placement.on_cpu == {"Gelu": 2}
    assert str(placement) == "24 nodes on CUDA, 6 nodes on CPU"


def test_session_refuses_a_provider_that_is_not_installed(tiny_folder):
    import onnxruntime

    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(BackendError, match="has no cuda provider"):
        open_session(open_graph(tiny_folder), provider="cuda")
