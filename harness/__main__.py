"""`python -m harness` is the command `seatrial`."""

from harness.cli import main

if __name__ == "__main__":
    main()
