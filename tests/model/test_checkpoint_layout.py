"""Layouts of a `.bin`: where each tensor stands, and what `--layout` may say."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from andrea_model.checkpoint import Layout, open_checkpoint, random_checkpoint, write_bin
from andrea_model.config import AndreaConfig
from andrea_model.errors import ConfigError

V, T, D, M = 7, 5, 4, 16  # vocabulary, context, d_model, mlp_dim
CONFIG = AndreaConfig(V, T, D, n_layer=2, n_head=2, tied_head=False)

# Floats before a tensor, added up by hand: norms are 2·D, an MLP matrix D·M, its biases M and D.
EMBEDDINGS = V * D + T * D
NORM = 2 * D
MLP = D * M + M + M * D + D
BLOCK = NORM + 4 * D * D + NORM + MLP
OFFSETS = [
    ("", "wpe.weight", V * D),
    ("", "blocks.0.norm1.bias", EMBEDDINGS + D),
    ("", "blocks.0.attn.k.weight", EMBEDDINGS + NORM + D * D),
    ("", "blocks.0.norm2.weight", EMBEDDINGS + NORM + 4 * D * D),
    ("", "blocks.1.norm1.weight", EMBEDDINGS + BLOCK),
    ("", "blocks.1.mlp.fc1.bias", EMBEDDINGS + BLOCK + NORM + 4 * D * D + NORM + D * M),
    ("", "norm_f.weight", EMBEDDINGS + 2 * BLOCK),
    ("", "head.weight", EMBEDDINGS + 2 * BLOCK + NORM),
    ("head=third", "head.weight", EMBEDDINGS),
    ("head=third", "blocks.0.norm1.weight", EMBEDDINGS + V * D),
    ("attention=kvqo", "blocks.0.attn.q.weight", EMBEDDINGS + NORM + 2 * D * D),
    ("norms=last", "blocks.0.attn.q.weight", EMBEDDINGS),
    ("norms=last", "blocks.1.attn.q.weight", EMBEDDINGS + 4 * D * D + MLP),
    ("norms=last", "blocks.1.norm1.weight", EMBEDDINGS + 2 * (4 * D * D + MLP) + 2 * NORM),
    ("norms=last", "norm_f.bias", EMBEDDINGS + 2 * (4 * D * D + MLP) + 4 * NORM + D),
    ("norms=last,head=third", "norm_f.weight", EMBEDDINGS + V * D + 2 * BLOCK),
]  # fmt: skip


@pytest.mark.parametrize(("text", "name", "offset"), OFFSETS)
def test_bin_when_written_in_a_layout_then_the_tensor_stands_where_counted(
    tmp_path: Path, text: str, name: str, offset: int
) -> None:
    drawn = random_checkpoint("andrea-nano", 2, config=CONFIG).tensors
    path = tmp_path / "a.bin"
    write_bin(CONFIG, drawn, path, layout=Layout.parse(text))
    floats = np.fromfile(path, "<f4", offset=8)
    np.testing.assert_array_equal(floats[offset : offset + drawn[name].size], drawn[name].ravel())


def test_bin_when_out_in_then_only_the_blocks_matrices_are_transposed(tmp_path: Path) -> None:
    drawn = random_checkpoint("andrea-nano", 2, config=CONFIG).tensors
    path = tmp_path / "a.bin"
    write_bin(CONFIG, drawn, path, layout=Layout(orientation="out_in"))
    floats = np.fromfile(path, "<f4", offset=8)
    fc1 = EMBEDDINGS + NORM + 4 * D * D + NORM
    as_written = floats[fc1 : fc1 + D * M].reshape(M, D)
    np.testing.assert_array_equal(as_written.T, drawn["blocks.0.mlp.fc1.weight"])
    np.testing.assert_array_equal(floats[: V * D].reshape(V, D), drawn["wte.weight"])
    head = EMBEDDINGS + 2 * BLOCK + NORM
    np.testing.assert_array_equal(floats[head : head + V * D].reshape(V, D), drawn["head.weight"])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("affine", ["none", "scale", "scale_bias"])
def test_bin_when_written_in_every_layout_then_it_reads_back_the_same(
    tmp_path: Path, tied: bool, affine: str
) -> None:
    config = CONFIG.replace(tied_head=tied, norm_affine=affine, bias="all")
    drawn = dict(random_checkpoint("andrea-nano", 4, config=config).tensors)
    path, contents = tmp_path / "a.bin", set()
    for layout in Layout.all_for(config):
        write_bin(config, drawn, path, layout=layout, optimizer_state=False)
        read = open_checkpoint(path, config=config, layout=layout)
        assert list(read.tensors) == list(drawn)
        assert all(np.array_equal(read.tensors[name], drawn[name]) for name in drawn)
        contents.add(path.read_bytes())
    # Layouts that all_for tells apart make different files.
    assert len(contents) == len(Layout.all_for(config))


@pytest.mark.parametrize(
    ("tied", "affine", "count"),
    [(False, "scale_bias", 192), (True, "scale", 96), (False, "none", 96), (True, "none", 48)],
)
def test_all_for_when_a_choice_cannot_matter_then_it_is_not_offered(
    tied: bool, affine: str, count: int
) -> None:
    layouts = Layout.all_for(CONFIG.replace(tied_head=tied, norm_affine=affine))
    assert len(set(layouts)) == len(layouts) == count
    assert layouts[0] == Layout()
    assert {layout.attention for layout in layouts} == {
        "".join(order) for order in itertools.permutations("qkvo")
    }


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("", Layout()),
        ("orientation=out_in", Layout(orientation="out_in")),
        (" head = third , norms=last,", Layout(head="third", norms="last")),
        ("attention=kqvo", Layout(attention="kqvo")),
    ],
)
def test_parse_when_the_text_is_right_then_it_round_trips(text: str, layout: Layout) -> None:
    assert Layout.parse(text) == layout
    assert Layout.parse(str(layout)) == layout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "orientation",
            "'orientation' is not KEY=VALUE; keys: orientation, head, norms, attention",
        ),
        ("order=qkvo", "unknown key 'order'; keys: orientation, head, norms, attention"),
        ("head=first", "head must be last or third, not 'first'"),
        ("norms=", "norms must be inline or last, not ''"),
        ("attention=qkv", "attention must hold q, k, v and o once each, as in qkvo, not 'qkv'"),
        ("attention=qkvv", "attention must hold q, k, v and o once each, as in qkvo, not 'qkvv'"),
        ("head=last,head=third", "head is given twice, 'last' and 'third'"),
    ],
)
def test_parse_when_the_text_is_wrong_then_key_value_and_choices_are_named(
    text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Layout.parse(text)
