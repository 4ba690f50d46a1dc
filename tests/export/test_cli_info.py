"""`info` as people type it."""

import json

from command_line import CONFIG, call

from andrea_model import AndreaConfig, open_checkpoint
from andrea_model.checkpoint import write_bin


def test_info_prints_the_table_with_the_exact_total(capsys, ckpt):
    code, out, _ = call(capsys, "info", ckpt)
    assert code == 0
    # wte 261·24, wpe 40·24, per block 4·24² + 8·24² + 96 + 24 + 4·24, final norm 2·24
    total = 261 * 24 + 40 * 24 + 2 * (12 * 24 * 24 + 120 + 96) + 48
    assert f"{total:,}" in out
    assert "d_model" in out


def test_info_json_has_the_config_and_nothing_else_is_printed(capsys, ckpt):
    code, out, err = call(capsys, "info", ckpt, "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert AndreaConfig.from_dict(result["config"]) == CONFIG
    assert sum(part["parameters"] for part in result["parts"]) == result["parameters"]


def test_info_says_why_a_nominal_name_is_not_the_size(capsys):
    _, out, _ = call(capsys, "info", "andrea-120m-published", "--random-weights", 1)
    text = " ".join(out.split())
    assert '"120M" is a nominal name: this model has 98.7M parameters' in text
    assert "with GPT-2's 50257 ids the same blocks make 124.4M" in text


def test_info_probe_finds_the_layout_of_a_trained_model(capsys, tmp_path):
    demo = open_checkpoint("andrea-nano")
    from andrea_model.checkpoint import Layout
    from andrea_model.demo import heldout_text

    path = tmp_path / "nano.bin"
    layout = "orientation=out_in,head=last,norms=last,attention=kqvo"
    write_bin(demo.config, demo.tensors, path, step=1, layout=Layout.parse(layout))
    code, out, _ = call(
        capsys,
        "info",
        path,
        "--probe",
        heldout_text(),
        "--tokenizer",
        demo.tokenizer_path,
        "--json",
    )
    assert code == 0
    best = json.loads(out)["probe"][0]
    assert best["layout"] == layout
    assert best["id_layout"] == "bytes,bos,segments"


def test_path_with_brackets_is_printed_as_it_is(capsys, ckpt, tmp_path):
    odd = tmp_path / "we[ird] [bold]ünï"
    ckpt.rename(odd)
    code, out, _ = call(capsys, "info", odd)
    assert code == 0
    assert "we[ird] [bold]ünï" in out.replace("\n", "")


def test_long_probe_is_text_and_not_a_path(capsys, tmp_path):
    demo = open_checkpoint("andrea-nano")
    path = tmp_path / "nano.bin"
    write_bin(demo.config, demo.tensors, path, step=1)
    options = ("--probe", "Good madam, let me see your face. " * 20)
    code, out, _ = call(capsys, "info", path, *options, "--tokenizer", demo.tokenizer_path)
    assert code == 0
    assert "Use it with: --layout orientation=in_out," in out
