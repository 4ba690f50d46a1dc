"""Plugins, as far as they go without TensorRT."""

from pathlib import Path

import pytest
from fake_driver import driver

from andrea_export.engine.build import _check_plugins, _plugin_library
from andrea_export.engine.flavors import FLAVORS
from andrea_export.engine.onnx_nodes import custom_nodes
from andrea_export.engine.options import EngineOptions
from andrea_export.engine.source import open_source
from andrea_export.errors import EngineError, InputError


@pytest.fixture
def no_library(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))


@pytest.mark.usefixtures("no_library")
def test_no_plugin_library_is_a_note_unless_plugins_are_insisted_on():
    notes = []
    assert _plugin_library(FLAVORS["tensorrt"], EngineOptions(), notes.append) is None
    assert any("custom ops use their definitions inside the graph" in line for line in notes)
    with pytest.raises(InputError, match="andrea-export plugins build"):
        _plugin_library(FLAVORS["tensorrt"], EngineOptions(plugins="on"), notes.append)


@pytest.mark.usefixtures("no_library")
def test_plugins_off_and_rtx_never_look_for_a_library():
    notes = []
    for flavor, plugins in (("tensorrt", "off"), ("rtx", "auto")):
        options = EngineOptions(plugins=plugins)
        assert _plugin_library(FLAVORS[flavor], options, notes.append) is None
    assert notes == []


def test_library_of_someone_else_is_refused(tmp_path):
    other = driver(tmp_path, 0)
    options = EngineOptions(plugin_library=Path(other))
    with pytest.raises(InputError, match="not one of andrea-export's"):
        _plugin_library(FLAVORS["tensorrt"], options, print)


def test_insisting_on_plugins_fails_when_no_node_became_one(tiny_folder):
    graph = open_source(tiny_folder)
    _check_plugins(graph, {"AndreaGelu": {"function": 1}, "AndreaLayerNorm": {"plugin": 1}})
    with pytest.raises(EngineError, match=r"--plugins on, but no node of .* \(AndreaGelu\)"):
        _check_plugins(graph, {"AndreaGelu": {"function": 1}})


def test_names_of_custom_nodes_tell_their_ops(tiny_folder):
    nodes = custom_nodes(tiny_folder / "model.onnx")
    assert nodes["blocks.1.mlp.activation"] == "AndreaBiasGelu"
    assert nodes["norm_f"] == "AndreaAddLayerNorm"
    assert "blocks.0.attn.q" not in nodes
