"""Engines are refused, with the reason, when sidecar, file and machine disagree."""

import hashlib
import json
import re
from dataclasses import replace

import pytest

from andrea_export.cli import run
from andrea_export.engine import admission, open_engine, open_trusted_engine
from andrea_export.engine.admission import admit, find_plugin_library, refusal
from andrea_export.engine.flavors import FLAVORS
from andrea_export.engine.gpus import Gpu, Machine
from andrea_export.errors import BackendError, EngineError
from andrea_export.session import open_session
from andrea_model import AndreaConfig

CONFIG = AndreaConfig(vocab_size=97, context_length=24, d_model=64, n_layer=2, n_head=2)
PLAN = b"a plan that only TensorRT could read"
VERSION = "11.4.0.106"


def gpu(capability):
    return Machine((Gpu("A GPU", capability, 1 << 33),), "13.0")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def folder(tmp_path):
    """An engine folder with a made-up plan: folder(flavor="rtx", ...) changes the sidecar."""

    def make(**changes):
        sidecar = {
            "schema": 1,
            "flavor": "tensorrt",
            "version": VERSION,
            "precision": "fp16",
            "compute_capabilities": ["8.9"],
            "sha256": {"model.engine": sha256(PLAN)},
            "bytes": len(PLAN),
            "graph": {"sha256": {}},
            "inputs": [],
            "outputs": [],
            "profiles": [],
            "capacity": None,
            "custom_ops": {},
            "plugin_library": None,
            "options": {},
            **changes,
        }
        (tmp_path / "engine.json").write_text(json.dumps(sidecar))
        (tmp_path / "model.engine").write_bytes(PLAN)
        (tmp_path / "config.json").write_text(CONFIG.to_json())
        return tmp_path

    return make


# Opening


def test_engine_folder_opens_with_its_configuration(folder):
    engine = open_engine(folder())
    assert (engine.flavor, engine.precision, engine.config) == ("tensorrt", "fp16", CONFIG)
    engine.check_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "engine.json cannot be read"),
        ("[]", "holds no JSON object"),
        ('{"schema": 2}', "has schema 2, this version reads 1: build the engine again"),
        ('{"schema": 1}', "is damaged: flavor is missing"),
    ],
)
def test_damaged_sidecar_is_refused(folder, text, message):
    path = folder()
    (path / "engine.json").write_text(text)
    with pytest.raises(EngineError, match=message):
        open_engine(path)


@pytest.mark.parametrize(
    ("key", "value"), [("profiles", {}), ("capacity", "8"), ("sha256", {}), ("version", None)]
)
def test_sidecar_with_a_wrong_value_is_refused_by_its_key(folder, key, value):
    with pytest.raises(EngineError, match=rf"is damaged: .*({key}|model.engine)"):
        open_engine(folder(**{key: value}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("inputs", [1], r"inputs\[0\] is 1"),
        ("inputs", [{"name": "ids", "dtype": "INT64"}], r"inputs\[0\].shape is missing"),
        ("outputs", [{"name": 1, "dtype": "X", "shape": []}], r"outputs\[0\].name is 1"),
        ("outputs", [{"name": "y", "dtype": "X", "shape": [1.5]}], r"shape\[0\] is 1.5"),
        ("profiles", [{"ids": {"min": [1], "opt": [1]}}], r"profiles\[0\].ids.max is missing"),
        ("custom_ops", {"Gelu": 4}, "custom_ops.Gelu is 4"),
        ("compute_capabilities", [8.9], r"compute_capabilities\[0\] is 8.9"),
        ("plugin_library", {"file": "x.so"}, "plugin_library.sha256 is missing"),
        ("engine", {"layers": 3}, "engine.layer_types is missing"),
        ("graph", {}, "graph.sha256 is missing"),
        ("capacity", True, "capacity is True"),
    ],
)
def test_sidecar_is_damaged_wherever_readers_rely_on_it(folder, key, value, message):
    with pytest.raises(EngineError, match=f"engine.json is damaged: .*{message}"):
        open_engine(folder(**{key: value}))


def test_network_record_is_held_against_its_hash(folder):
    record = b'{"schema": 1, "layers": []}'
    path = folder(sha256={"model.engine": sha256(PLAN), "network.json": sha256(record)})
    (path / "network.json").write_bytes(record)
    assert open_engine(path).read_network() == []
    (path / "network.json").write_bytes(record + b" ")
    with pytest.raises(EngineError, match=r"network.json is not the file that engine.json"):
        open_engine(path).read_network()


@pytest.mark.parametrize("name", ["engine.json", "model.engine"])
def test_folder_without_engine_or_sidecar_is_refused(folder, name):
    path = folder()
    (path / name).unlink()
    with pytest.raises(EngineError, match=f"is not an engine folder: it has no {name}"):
        open_engine(path)


@pytest.mark.parametrize(
    "command",
    [["generate", "--prompt", "x"], ["inspect"], ["trt", "-o", "x", "--compute-capability", "8.9"]],
    ids=lambda command: command[0],
)
def test_engine_without_a_sidecar_is_told_as_an_engine(folder, capsys, command):
    path = folder()
    (path / "engine.json").unlink()
    assert run([command[0], str(path), *command[1:]]) == 2
    message = capsys.readouterr().err
    if command[0] == "trt":
        assert "is an engine already" in message
    else:
        assert "it has no engine.json; `andrea-export generate --trust FLAVOR`" in message


def test_file_is_no_engine_folder(folder):
    with pytest.raises(EngineError, match="is a file: give the folder that `andrea-export trt`"):
        open_engine(folder() / "model.engine")


def test_truncated_engine_is_refused_by_its_size(folder):
    path = folder()
    (path / "model.engine").write_bytes(PLAN[:-1])
    with pytest.raises(EngineError, match=r"has 35 bytes, its sidecar says 36: .* cut short"):
        open_engine(path).check_file()


def test_engine_with_one_changed_byte_is_refused_by_its_hash(folder):
    path = folder()
    (path / "model.engine").write_bytes(PLAN[:-1] + b"!")
    with pytest.raises(EngineError, match="damaged or was replaced"):
        open_engine(path).check_file()


# Admission


@pytest.mark.parametrize(
    ("changes", "version", "machine", "reason"),
    [
        ({}, VERSION, gpu("8.9"), None),
        ({}, None, gpu("8.9"), r"TensorRT is not installed: pip install .*\[gpu\]"),
        ({}, "11.3.0.99", gpu("8.9"), r"built by TensorRT 11.4.0.106, installed is 11.3.0.99"),
        ({}, VERSION, gpu("8.6"), "built for compute capability 8.9, this GPU has 8.6"),
        ({}, VERSION, Machine((), None, "there is no driver"), "there is no driver"),
        ({"options": {"strip_weights": True}}, VERSION, gpu("8.9"), "`andrea-export refit`"),
        ({"options": {"version_compatible": True}}, "11.9.0.1", gpu("8.9"), None),
        ({"options": {"version_compatible": True}}, "12.0.0.1", gpu("8.9"), "installed is 12"),
        ({"options": {"hardware_compatible": True}}, VERSION, gpu("8.0"), None),
        ({"options": {"hardware_compatible": True}}, VERSION, gpu("12.0"), None),
        (
            {"options": {"hardware_compatible": True}},
            VERSION,
            gpu("7.5"),
            "GPUs from compute capability 8.0 on, this GPU has 7.5",
        ),
        (
            {"flavor": "rtx", "compute_capabilities": ["8.9", "12.0"]},
            VERSION,
            gpu("8.6"),
            "build it again with --compute-capability 8.6",
        ),
        ({"flavor": "rtx", "compute_capabilities": ["8.9", "12.0"]}, VERSION, gpu("12.0"), None),
    ],
)
def test_machine_is_held_against_the_sidecar(folder, changes, version, machine, reason):
    engine = open_engine(folder(**changes))
    said = refusal(engine, FLAVORS[engine.flavor], version, machine)
    assert said is None if reason is None else re.search(reason, said)


def test_plugin_library_must_be_the_very_one(folder, tmp_path):
    library = tmp_path / "libandrea_plugins.so"
    library.write_bytes(b"the library")
    record = {"file": library.name, "sha256": sha256(b"the library")}
    engine = open_engine(folder(plugin_library=record))
    assert find_plugin_library(engine, library) == library
    library.write_bytes(b"another one")
    with pytest.raises(
        BackendError, match=r"was built with another plugin library than .*name that"
    ):
        find_plugin_library(engine, library)
    library.unlink()
    with pytest.raises(BackendError, match=r"needs the plugin library, and .* is not there"):
        find_plugin_library(engine, library)


def test_plugin_library_that_the_engine_does_not_use_is_refused(folder, tmp_path):
    engine = open_engine(folder(plugin_library=None))
    assert find_plugin_library(engine) is None
    with pytest.raises(BackendError, match="without a plugin library: leave --plugin-library out"):
        find_plugin_library(engine, tmp_path / "library.so")


def test_missing_plugin_library_says_how_to_build_it(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    engine = open_engine(folder(plugin_library={"file": "libandrea_plugins.so", "sha256": "0"}))
    with pytest.raises(BackendError, match=r"needs the plugin library .*: no plugin library in"):
        find_plugin_library(engine)


def test_engine_of_an_unknown_flavor_is_refused(folder):
    with pytest.raises(BackendError, match="unknown flavor of TensorRT, 'lean'"):
        admit(open_engine(folder(flavor="lean")))


def test_file_is_checked_before_tensorrt_sees_it(folder, monkeypatch):
    path = folder(flavor="rtx")
    (path / "model.engine").write_bytes(PLAN[:-1] + b"!")
    monkeypatch.setattr(admission, "is_installed", lambda _: True)
    monkeypatch.setattr(admission, "installed_version", lambda _: VERSION)
    monkeypatch.setattr(admission, "machine", lambda: gpu("8.9"))
    with pytest.raises(EngineError, match="damaged or was replaced"):
        admit(open_engine(path))


# Sessions


def test_session_without_a_gpu_is_refused_with_the_reason(folder, monkeypatch):
    monkeypatch.setattr(admission, "is_installed", lambda _: True)
    monkeypatch.setattr(admission, "installed_version", lambda _: VERSION)
    monkeypatch.setattr(admission, "machine", lambda: Machine((), None, "there is no driver"))
    with pytest.raises(BackendError, match="cannot run here: there is no driver"):
        open_session(open_engine(folder()))


def test_session_with_a_cpu_build_of_torch_is_refused_before_tensorrt_is_loaded(
    folder, monkeypatch
):
    trt_runner = pytest.importorskip("andrea_export.session.trt_runner")
    monkeypatch.setattr(trt_runner, "admit", lambda *_: None)
    monkeypatch.setattr(trt_runner, "use_flavor", lambda name: pytest.fail(f"{name} was loaded"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(BackendError, match=r"cannot use the GPU.*`andrea-export doctor`"):
        open_session(open_engine(folder()))


def test_engine_without_a_configuration_is_no_model(folder):
    engine = replace(open_engine(folder()), config=None)
    with pytest.raises(BackendError, match=r"has no config\.json"):
        open_session(engine)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_other_backends_do_not_run_engines(folder, backend):
    with pytest.raises(BackendError, match="is an engine, which the trt backend runs alone"):
        open_session(open_engine(folder()), backend)


def test_trt_backend_does_not_run_graphs_or_checkpoints(tiny, tiny_folder, capsys):
    with pytest.raises(BackendError, match="this is a checkpoint: `andrea-export trt CKPT"):
        open_session(tiny, "trt")
    assert run(["generate", str(tiny_folder), "--prompt", "a", "--backend", "trt"]) == 2
    assert capsys.readouterr().err


# Engines without a sidecar


def test_engine_without_a_sidecar_opens_only_when_it_is_trusted(folder):
    path = folder()
    (path / "engine.json").unlink()
    with pytest.raises(EngineError, match=r"has no engine\.json"):
        open_engine(path)
    engine = open_trusted_engine(path, "rtx")
    assert (engine.is_trusted, engine.flavor, engine.config) == (True, "rtx", CONFIG)


@pytest.mark.parametrize(
    ("change", "flavor", "message"),
    [
        (lambda _: None, "rtx", "has a sidecar: leave --trust out"),
        (lambda _: None, "lean", "flavor 'lean' is not one of tensorrt, rtx"),
        (
            lambda path: [(path / n).unlink() for n in ("engine.json", "model.engine")],
            "rtx",
            "it has no model.engine",
        ),
    ],
)
def test_trust_is_for_engines_without_a_sidecar(folder, change, flavor, message):
    path = folder()
    change(path)
    with pytest.raises(EngineError, match=message):
        open_trusted_engine(path, flavor)
