"""Which names of TensorRT's Python API the engine code uses, and which versions have them.

Full TensorRT cannot be imported where this project is developed, but its binding wheels can be
read: every class, method and enum member of the API lies as a string in their extension module.
`tensorrt_names.json` keeps, for the names that are used, the versions that have them. After using
a new name, or for a new version, put the wheels into a folder and write the file again:

    pip download --no-deps --dest WHEELS tensorrt-cu13-bindings==11.4.0.106   (and each other)
    python tests/tensorrt_names.py WHEELS

With tensorrt_stubs-*.whl in the same folder, `--types` also checks the code against its type stubs.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_name("tensorrt_names.json")
# Every module that calls TensorRT.
MODULES = tuple(
    ROOT / "andrea_export" / name
    for name in (
        "engine/binding.py",
        "engine/building.py",
        "engine/marking.py",
        "engine/parsing.py",
        "engine/read_back.py",
        "engine/refit_worker.py",
        "engine/steps.py",
        "session/trt_debug.py",
        "session/trt_runner.py",
    )
)
# Python's own, ours, torch's and numpy's: names that TensorRT has as well, by chance.
SHARED = {"append", "close", "copy_", "format", "get", "name", "numpy", "run", "start", "stream"}


def used_names():
    """Name → "file:line" of a place that uses it: attributes, and names looked up by string."""
    found = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute):
                names = [node.attr]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                lookups = ("getattr", "hasattr", "_member")
                looked_up = node.args[1:2] if node.func.id in lookups else []
                names = [a.value for a in looked_up if isinstance(a, ast.Constant)]
            elif isinstance(node, ast.FunctionDef):
                names = [node.name]  # what a subclass of theirs overrides
            else:
                continue
            for name in names:
                found.setdefault(name, f"{path.name}:{node.lineno}")
    from andrea_export.engine.building import FLAGS

    for flags in FLAGS.values():
        for flag in flags:
            found.setdefault(flag, "building.py: FLAGS")
    return found


def names_of_rtx():
    """Every name in the API of TensorRT-RTX, which can be imported here."""
    import tensorrt_rtx as trt

    names = set()
    for name, value in vars(trt).items():
        if isinstance(value, type) and not name.startswith("_"):
            names |= {name, *(member for member in dir(value) if not member.startswith("_"))}
    return names


def module_of_wheel(wheel):
    """The extension module in a binding wheel, as bytes."""
    with zipfile.ZipFile(wheel) as archive:
        (module,) = (n for n in archive.namelist() if n.endswith("/tensorrt.so"))
        return archive.read(module)


def has_name(module, name):
    """Whether the module holds a string that is the name, or ends with it.

    Linkers store a string that ends another one only once, as the end of that.
    """
    return name.encode() + b"\0" in module


def write_record(wheels):
    versions = {}
    for wheel in sorted(wheels.glob("tensorrt_cu13_bindings-*.whl")):
        versions[wheel.name.split("-")[1]] = module_of_wheel(wheel)
    ordered = sorted(versions, key=lambda v: [int(n) for n in re.findall(r"\d+", v)])
    api = names_of_rtx()
    names = sorted((set(used_names()) & api) - SHARED)
    record = {
        "versions": ordered,
        "names": {name: [v for v in ordered if has_name(versions[v], name)] for name in names},
    }
    lines = [f"    {json.dumps(n)}: {json.dumps(v)}" for n, v in record["names"].items()]
    body = ",\n".join(lines)
    RECORD.write_text(
        f'{{\n  "versions": {json.dumps(ordered)},\n  "names": {{\n{body}\n  }}\n}}\n'
    )


def usable_stubs(wheel, folder):
    """The stubs unpacked, with what is no Python in them made so.

    Some defaults are written as <Enum.X: 0>, and some parameters are called `in`.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for path in folder.glob("tensorrt*/*.pyi"):
        lines = path.read_text().splitlines()
        while True:
            try:
                ast.parse("\n".join(lines))
                break
            except SyntaxError as error:
                index = error.lineno - 1
                while not (head := re.match(r"(\s*)def (\w+)\(|(\s*)(\w+)\s*=", lines[index])):
                    index -= 1
                indent, name = head[1] or head[3] or "", head[2] or head[4]
                is_function = head[2] is not None
                tail = "(*args: Any, **kwargs: Any) -> Any:" if is_function else ": Any"
                lines[index] = (
                    f"{indent}def {name}{tail}" if is_function else f"{indent}{name}{tail}"
                )
        path.write_text("from typing import Any\n" + "\n".join(lines) + "\n")


def check_types(wheel):
    """Run mypy over the modules with the stubs in place; its output, "" if there is nothing."""
    with tempfile.TemporaryDirectory() as folder:
        usable_stubs(wheel, Path(folder))
        found = subprocess.run(
            [sys.executable, "-m", "mypy", *map(str, MODULES)],
            cwd=ROOT,
            env={**os.environ, "MYPYPATH": folder},
            capture_output=True,
            text=True,
        )
    lines = found.stdout.splitlines()
    return "\n".join(line for line in lines if line.startswith("andrea_export"))


if __name__ == "__main__":
    wheels_folder = Path(sys.argv[1])
    if "--types" in sys.argv:
        print(check_types(next(wheels_folder.glob("tensorrt_stubs-*.whl"))))
    else:
        write_record(wheels_folder)
