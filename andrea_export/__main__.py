"""`python -m andrea_export` is the same command as `andrea-export`."""

from andrea_export.cli import main

if __name__ == "__main__":
    main()
