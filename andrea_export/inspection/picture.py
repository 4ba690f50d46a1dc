"""The structure of the model as a page of HTML: one box per part, equal blocks drawn once."""

from __future__ import annotations

import re
from collections import Counter
from html import escape
from itertools import groupby

from andrea_export.inspection.inspection import (
    OTHER,
    PARSER,
    Inspection,
    Layer,
    Part,
    size_text,
)

__all__ = ["picture"]

TITLES = {
    "norm1": "norm",
    "attn": "attention",
    "norm2": "norm",
    "mlp": "MLP",
    "norm_f": "final norm",
    "head": "output head",
}
# What has no place between ids and logits.
ASIDE = (PARSER, OTHER)
STYLE = """
:root { --ink: #1b1f24; --soft: #5b6570; --line: #c9d1d9; --page: #ffffff; --box: #f6f8fa;
        --plugin: #1a7f37; --function: #0969da; --other: #9a6700; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9da7b1; --line: #3d444d; --page: #0d1117; --box: #161b22;
          --plugin: #3fb950; --function: #58a6ff; --other: #d29922; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--page);
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.2rem; overflow-wrap: anywhere; } h2 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.box, .block { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .8rem; }
.box { background: var(--box); } .block > .box { background: var(--page); }
.block > p { margin: 0 0 .5rem; font-weight: 600; }
.arrow { text-align: center; color: var(--soft); line-height: 1.1; }
.box > b { display: inline-block; min-width: 8.5rem; } .box > span { color: var(--soft); }
.ops { margin: .3rem 0 0; display: flex; flex-wrap: wrap; gap: .3rem; padding: 0; }
.ops li { list-style: none; border: 1px solid var(--line); border-radius: 999px; padding: 0 .55rem;
          font-size: .85em; }
.ops li.plugin { border-color: var(--plugin); color: var(--plugin); }
.ops li.function { border-color: var(--function); color: var(--function); }
.ops li.custom-op { border-color: var(--other); color: var(--other); }
"""


def picture(inspection: Inspection) -> str:
    """A page that needs nothing else: no script, no font, no other file."""
    parts = inspection.parts()
    layers: dict[str, list[Layer]] = {}
    for layer in inspection.layers:
        layers.setdefault(layer.part, []).append(layer)
    boxes = []
    chain = [part for part in parts if part.name not in ASIDE]
    for block, members in groupby(chain, key=lambda part: _block(part.name)):
        drawn = [_box(part, layers.get(part.name, [])) for part in members]
        boxes.append((block, _ARROW.join(drawn)))
    stack = []
    # Neighbouring blocks that look the same are one drawing.
    for (is_block, body), same in groupby(boxes, key=lambda box: (box[0] is not None, box[1])):
        indexes = [block for block, _ in same]
        if is_block:
            title = f"block {indexes[0]}"
            if len(indexes) > 1:
                title = f"blocks {indexes[0]} to {indexes[-1]}: {len(indexes)} × the same"
            body = f'<div class="block"><p>{title}</p>{body}</div>'
        stack.append(body)
    way = f"<h2>From token ids to logits</h2>{_ARROW.join(stack)}" if stack else ""
    title = f"{inspection.kind} {inspection.path}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{_facts(inspection)}"
        f"{way}{_aside(parts, layers, 'Beside it' if stack else 'Layers')}"
        f"{''.join(f'<p>{escape(note)}</p>' for note in inspection.notes)}</body></html>\n"
    )


def _aside(parts: list[Part], layers: dict[str, list[Layer]], title: str) -> str:
    drawn = [_box(part, layers.get(part.name, [])) for part in parts if part.name in ASIDE]
    return f"<h2>{title}</h2>{''.join(drawn)}" if drawn else ""


_ARROW = '<div class="arrow">↓</div>'


def _facts(inspection: Inspection) -> str:
    rows = dict(inspection.facts)
    for kind, tensors in (("in", inspection.inputs), ("out", inspection.outputs)):
        shown = [t for t in tensors if not t.name.startswith(("past_key_values.", "present."))]
        caches = len(tensors) - len(shown)
        texts = [f"{t.name} {t.dtype} [{', '.join(map(str, t.shape))}]" for t in shown]
        rows[kind] = "; ".join(texts) + (f"; {caches} cache tensors" if caches else "")
    items = (f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in rows.items())
    return f"<dl>{''.join(items)}</dl>"


def _box(part: Part, layers: list[Layer]) -> str:
    name = part.name.rsplit(".", 1)[-1] if _block(part.name) is not None else part.name
    facts = [", ".join(f"{count} {dtype}" for dtype, count in part.dtypes.most_common())]
    if part.parameters:
        facts.append(f"{part.parameters:,} parameters, {size_text(part.weight_bytes)}")
    ops: Counter[tuple[str, str]] = Counter(_label(layer) for layer in layers)
    items = "".join(
        f'<li class="{form.replace(" ", "-")}">{escape(label)}'
        f"{f' × {count}' if count > 1 else ''}</li>"
        for (label, form), count in ops.items()
    )
    return (
        f'<div class="box"><b>{escape(TITLES.get(name, name))}</b> '
        f'<span>{escape(" · ".join(filter(None, facts)))}</span><ul class="ops">{items}</ul></div>'
    )


def _label(layer: Layer) -> tuple[str, str]:
    if layer.form == "function":
        return f"{layer.custom_op}: {layer.op.lower()}", layer.form
    return layer.op, layer.form


def _block(part: str) -> int | None:
    match = re.match(r"blocks\.(\d+)\.", part)
    return int(match[1]) if match else None
