"""`python -m andrea_export` is the same command as `andrea-export`."""

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the `andrea-export` command."""
    try:
        from andrea_export.cli import main as run  # takes a while: Ctrl-C must not show it

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
