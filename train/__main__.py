"""`python -m rocstar.train RECIPE`: `rocstar train` for torchrun; `python -m rocstar.train sft RECIPE`."""

import os
import sys

from rocstar.train.cli import main

if __name__ == "__main__":
    code = main([*(() if sys.argv[1:2] == ["sft"] else ("train",)), *sys.argv[1:]])
    sys.stdout.flush()
    sys.stderr.flush()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # Everything is written. A thread of torch.distributed now and then aborts the interpreter's own exit
        # ("terminate called without an active exception"), and torchrun would call the whole run failed.
        os._exit(code)
    sys.exit(code)
