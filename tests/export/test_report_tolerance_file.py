"""Limits of one's own: what a file may say, and what is refused."""

import json

import pytest

from andrea_export.errors import InputError
from andrea_export.report.tolerance import BUILT_IN
from andrea_export.report.tolerance_file import read_tolerance


@pytest.fixture
def written(tmp_path):
    def write(value):
        path = tmp_path / "tolerance.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write


def test_what_is_named_is_replaced_and_all_else_stays(written):
    read = read_tolerance(written({"fp16": {"rms_error": {"ratio": 1.1}}}))
    old = BUILT_IN.figures["fp16"]["rms_error"]
    assert read.figures["fp16"]["rms_error"].ratio == 1.1
    assert read.figures["fp16"]["rms_error"].absolute == old.absolute
    assert read.figures["fp32"] == BUILT_IN.figures["fp32"]
    assert read.layers == BUILT_IN.layers


def test_the_limit_of_taps_is_one_of_them(written):
    read = read_tolerance(written({"bf16": {"layer_rms_error": {"absolute": 0.5}}}))
    assert read.layers["bf16"].absolute == 0.5
    assert read.layers["fp16"] == BUILT_IN.layers["fp16"]


def test_the_built_in_tables_are_untouched(written):
    before = BUILT_IN.to_dict()
    read_tolerance(written({"fp32": {"max_error": {"absolute": 1.0}}}))
    assert BUILT_IN.to_dict() == before


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"fp8": {}}, r"unknown dtype 'fp8'; known are fp32, fp16, bf16"),
        ({"fp16": {"rms": {}}}, r"unknown figure of fp16 'rms'; known are max_error, rms_error"),
        ({"fp16": {"rms_error": {"max": 1}}}, r"unknown part of fp16.rms_error 'max'"),
        ({"fp16": {"rms_error": {"ratio": "1"}}}, "must be a number from 0 on, not '1'"),
        ({"fp16": {"rms_error": {"ratio": -1}}}, "must be a number from 0 on, not -1"),
        ({"fp16": {"rms_error": {"ratio": True}}}, "must be a number from 0 on, not True"),
        ({"fp16": {"rms_error": 3}}, "fp16.rms_error must be a JSON object, not int"),
        ({"fp16": []}, "fp16 must be a JSON object, not list"),
        ([], "the file must be a JSON object, not list"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"fp16": {"rms_error": {"ratio": 1' + "0" * 400 + "}}}", "must be a number from 0 on"),
        ('{"fp16": {"rms_error": {"ratio": 1e400}}}', "must be a number from 0 on, not inf"),
    ],
)
def test_a_file_that_is_not_understood_is_refused_with_the_value(written, value, said):
    with pytest.raises(InputError, match=said):
        read_tolerance(written(value))
