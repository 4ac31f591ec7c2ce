"""``python -m redrive`` and the command ``redrive``: an interrupt is no traceback, also while the rest is imported."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from redrive.cli import main as run  # noqa: PLC0415 - it takes a third of a second, in which Ctrl-C may come

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Aborted!\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
