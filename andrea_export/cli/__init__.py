"""The command line: parse, call one public function, print. No logic lives here."""

import errno
import io
import os
import signal
import sys
import traceback
from typing import Any

import typer

from andrea_export import __version__
from andrea_export.cli import (
    bench,
    doctor,
    generate,
    info,
    inspect,
    onnx,
    plugins,
    refit,
    report,
    trt,
    validate,
)
from andrea_export.errors import AndreaExportError

__all__ = ["app", "main", "run"]

app = typer.Typer(
    name="andrea-export",
    help="Take a trained GPT-style model out of PyTorch: ONNX, TensorRT, and figures that prove "
    "it is still the same model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("info")(info.info)
app.command("onnx")(onnx.onnx)
app.command("trt")(trt.trt)
app.command("refit")(refit.refit)
app.command("validate")(validate.validate)
app.add_typer(report.app)
app.command("generate")(generate.generate)
app.command("bench")(bench.bench)
app.add_typer(plugins.app)
app.command("inspect")(inspect.inspect)
app.command("doctor")(doctor.doctor)

EXIT_ERROR = 2
USAGE_ERROR: type = typer.BadParameter.__mro__[1]  # of what typer does not export itself
# What a path alone can be: that it is no fault of ours is certain.
UNREACHABLE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE  # not 1, which would mean a model out of tolerance


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks (works after a command)."),
) -> None:
    pass


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code. Errors are one or two lines on stderr."""
    # --debug works at any place on the line, as people type it.
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if arguments == ["--version"]:
        print(__version__)
        return 0
    try:
        code = app(arguments, prog_name=app.info.name, standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # typer makes an exit with 1 of it
            return _broken_pipe()
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BrokenPipeError:
        return _broken_pipe()
    except Exception as error:
        if debug and not isinstance(error, USAGE_ERROR):
            traceback.print_exc()
        elif message := _explained(error):
            print(f"andrea-export: {message}", file=sys.stderr)
        return EXIT_ERROR
    return code if isinstance(code, int) else 0


def _broken_pipe() -> int:
    """The reader of our output has gone: `andrea-export info | head -1`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


def _explained(error: Exception) -> str:
    if isinstance(error, AndreaExportError):
        return str(error)
    if isinstance(error, USAGE_ERROR):
        return _usage(error)
    if isinstance(error, MemoryError):
        return f"there is not enough memory: {error}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF):
        return f"the output cannot be written: {error.strerror}"
    if isinstance(error, OSError) and error.errno in UNREACHABLE and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return (
        f"unexpected {type(error).__name__}: {error}\n"
        "This is a fault of andrea-export; --debug shows where."
    )


def _usage(error: Any) -> str:
    """Nothing where a command without arguments has printed its help."""
    message = " ".join(error.format_message().split())
    if message and error.ctx is not None:
        message += f"\nTry `{error.ctx.command_path} --help`."
    return message


def main() -> None:
    """Entry point of the `andrea-export` command."""
    # Ended from outside, clean up as after Ctrl-C: what is half written goes.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    # A terminal of few letters shows the others as ?, and a closed stdout takes nothing.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    arguments = sys.argv[1:]
    if "report" in arguments:
        from andrea_export.survival import outlive, runs_candidates

        if runs_candidates(arguments):
            sys.exit(outlive(arguments))
    sys.exit(run(arguments))
