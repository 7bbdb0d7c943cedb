"""`python -m rocstar.train RECIPE`: `rocstar train` for torchrun."""

import sys

from rocstar.train.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
