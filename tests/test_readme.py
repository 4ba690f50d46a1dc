"""What the README shows is run as it stands there."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_python_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    [example] = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 100


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)", README.read_text("utf-8"))
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
