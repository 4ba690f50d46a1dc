"""Running a command line in this process, and the small model that the commands are tried on."""

from andrea_export.cli import run
from andrea_model import AndreaConfig

CONFIG = AndreaConfig(vocab_size=261, context_length=40, d_model=24, n_layer=2, n_head=3)
AS_BIN = ["--set", "vocab_size=261", "--set", "context_length=40", "--set", "d_model=24"]
AS_BIN += ["--set", "n_layer=2", "--set", "n_head=3"]


def call(capsys, *arguments):
    """Exit code, stdout, stderr."""
    capsys.readouterr()
    code = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *arguments):
    """The message of a command that must end with exit code 2 and say one or two lines."""
    code, out, err = call(capsys, *arguments)
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    assert 1 <= len(err.strip().splitlines()) <= 2, err
    return err
