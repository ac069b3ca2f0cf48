"""`python -m headrace` and the `headrace` command."""

from .pipeline.cli import main

if __name__ == "__main__":
    main()
