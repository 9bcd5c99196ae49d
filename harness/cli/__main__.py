"""`python -m harness.cli` is the command `seatrial`."""

from harness.cli.main import main

if __name__ == "__main__":
    main()
