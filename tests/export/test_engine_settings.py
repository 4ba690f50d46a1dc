"""The builder's settings, read back from a real builder: nothing is built."""

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from andrea_export.engine import binding, building, parsing
from andrea_export.engine.profiles import fill_profile, parse_profile
from andrea_export.engine.request import BuildRequest
from andrea_export.errors import BackendError, EngineError

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")


@pytest.fixture(scope="module")
def trt():
    binding.use_flavor("rtx")
    return binding.trt


@pytest.fixture(scope="module")
def builder(trt):
    return trt.Builder(binding.logger(lambda *_: None))


def request(**options):
    settings = {"capabilities": "8.9", **options}
    return BuildRequest(flavor="rtx", onnx="", engine="", network="", **settings)


def test_capabilities_are_set_in_their_order(trt, builder):
    config = building.configure(builder, request(capabilities="12.0,8.6"))
    found = [config.get_compute_capability(i) for i in range(config.num_compute_capabilities)]
    assert found == [trt.ComputeCapability.SM120, trt.ComputeCapability.SM86]


def test_known_capabilities_are_numbers_only(trt):
    known = building.known_capabilities()
    assert {"7.5", "8.9", "12.0"} <= set(known)
    assert len(known) < len(trt.ComputeCapability.__members__)  # CURRENT and NONE are none


@pytest.mark.parametrize(
    ("option", "flags"),
    [
        ("version_compatible", ["VERSION_COMPATIBLE"]),
        ("strip_weights", ["STRIP_PLAN", "REFIT_IDENTICAL"]),
    ],
)
def test_option_sets_its_flags_and_no_others(trt, builder, option, flags):
    plain = building.configure(builder, request())
    config = building.configure(builder, request(**{option: True}))
    changed = {
        name
        for name, flag in trt.BuilderFlag.__members__.items()
        if config.get_flag(flag) != plain.get_flag(flag)
    }
    # TensorRT itself lets a stripped plan be refitted.
    assert set(flags) <= changed <= {*flags, "REFIT"}


def test_numbers_reach_the_builder(trt, builder):
    config = building.configure(builder, request(workspace_bytes=1 << 26, optimization_level=1))
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 1 << 26
    assert config.builder_optimization_level == 1


class TimingCaches:
    """A builder's settings as far as timing caches go: TensorRT reads no other bytes than these."""

    GOOD, FOREIGN = b"good", b"of another GPU"

    def create_timing_cache(self, data):
        return data if data in (b"", self.GOOD, self.FOREIGN) else None

    def set_timing_cache(self, cache, ignore_mismatch):
        assert isinstance(cache, bytes), "the binding takes no None"
        assert not ignore_mismatch
        return cache != self.FOREIGN

    def get_timing_cache(self):
        return SimpleNamespace(serialize=lambda: self.GOOD)


@pytest.mark.parametrize("data", [b"garbage", TimingCaches.FOREIGN])
def test_timing_cache_that_cannot_be_used_is_refused(tmp_path, data):
    (tmp_path / "cache").write_bytes(data)
    with pytest.raises(EngineError, match="the timing cache is damaged, or of another GPU"):
        building._open_timing_cache(TimingCaches(), tmp_path / "cache")


@pytest.mark.parametrize("place", [".", "missing/cache"])
def test_timing_cache_that_could_not_be_kept_is_refused_before_the_build(tmp_path, place):
    with pytest.raises(EngineError, match="is a file, in a folder that exists"):
        building._open_timing_cache(TimingCaches(), tmp_path / place)


def test_timing_cache_is_replaced_in_one_step(tmp_path):
    building._open_timing_cache(TimingCaches(), tmp_path / "cache")
    building.save_timing_cache(TimingCaches(), tmp_path / "cache")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"cache": TimingCaches.GOOD}
    (tmp_path / "folder").mkdir()
    with pytest.raises(EngineError, match="folder cannot be written"):
        building.save_timing_cache(TimingCaches(), tmp_path / "folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "folder"]


def test_hardware_level_is_ampere_and_newer(trt, builder):
    config = building.configure(builder, request(hardware_compatible=True))
    # TensorRT-RTX warns and ignores it, so it is never asked for there; the call is right.
    assert config.hardware_compatibility_level in (
        trt.HardwareCompatibilityLevel.AMPERE_PLUS,
        trt.HardwareCompatibilityLevel.NONE,
    )


def test_setting_that_this_tensorrt_lacks_is_named(trt):
    with pytest.raises(EngineError, match=r"has no BuilderFlag.FP16, which --half needs"):
        building._member(trt.BuilderFlag, "FP16", "half")


def test_network_is_strongly_typed(trt, builder):
    network = parsing.create_network(builder)
    assert network.get_flag(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def test_axes_without_a_name_get_one(trt, builder):
    network = parsing.create_network(builder)
    network.add_input("ids", trt.int64, (-1, 4))
    (found,) = parsing.network_inputs(network)
    assert (found.name, found.dtype, found.shape) == ("ids", "INT64", ("ids[0]", 4))


def test_profile_of_the_network_is_taken(trt, builder):
    network = parsing.create_network(builder)
    network.add_input("ids", trt.int64, (-1, 4))
    config = building.configure(builder, request())
    inputs = parsing.network_inputs(network)
    profile = fill_profile(inputs, {}, parse_profile("ids=1x4:2x4:3x4"))
    building.add_profile(builder, config, profile)
    assert config.num_optimization_profiles == 1


@pytest.mark.usefixtures("builder")
@pytest.mark.parametrize(
    ("source", "reason"), [("int x;", "getCreators"), (None, "cannot open shared object file")]
)
def test_library_that_holds_no_plugins_is_told_in_the_words_of_the_registry(
    tmp_path, source, reason
):
    library = tmp_path / "other.so"
    if source is not None:
        if shutil.which("cc") is None:
            pytest.skip("needs a C compiler")
        (tmp_path / "other.c").write_text(source)
        command = ["cc", "-shared", "-fPIC", "-o", library, tmp_path / "other.c"]
        subprocess.run(command, check=True)
    errors = []
    binding.logger(lambda severity, text: errors.append(text) if severity == "error" else None)
    with pytest.raises(EngineError, match=f"plugin library cannot be loaded: .*{reason}"):
        binding.load_plugins(str(library), errors)


@pytest.mark.usefixtures("trt")
def test_process_keeps_to_one_flavor():
    with pytest.raises(BackendError, match="this process already uses tensorrt_rtx"):
        binding.use_flavor("tensorrt")
