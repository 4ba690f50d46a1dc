"""The command line: parse, call one public function, print. No logic lives here."""

import logging
import sys

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

EXIT_BAD_INPUT = 2


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks (works after a command)."),
) -> None:
    pass


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code. Errors are one or two lines on stderr."""
    # These two work at any place on the line, as people type them.
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if arguments == ["--version"]:
        print(__version__)
        return 0
    logging.basicConfig(
        stream=sys.stderr, format="%(message)s", level=logging.DEBUG if debug else logging.WARNING
    )
    try:
        app(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except AndreaExportError as error:
        if debug:
            raise
        print(f"andrea-export: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:  # the reader of our output has gone: `andrea-export info | head -1`
        sys.stderr.close()
        return 1
    except Exception as error:
        if debug:
            raise
        print(
            f"andrea-export: unexpected {type(error).__name__}: {error}\n"
            "This is a fault of andrea-export; --debug shows where.",
            file=sys.stderr,
        )
        return EXIT_BAD_INPUT
    return 0


def main() -> None:
    """Entry point of the `andrea-export` command."""
    sys.exit(run(sys.argv[1:]))
