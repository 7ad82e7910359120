"""`python -m agents` is the command `sdp`."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="sdp")
