"""PYTHONPATH, of which zygotes are told nothing: what lies there is its user's, and may be anything.

Whoever set it finds a module that the sandbox does not, and is told why.
"""

import os
from importlib.machinery import PathFinder


def hint_on(module: str) -> str:
    """What to add where a zygote lacks this module; nothing where PYTHONPATH has it neither."""
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    for folder in folders:
        if module and PathFinder.find_spec(module.partition(".")[0], [folder]) is not None:
            return (
                f"; PYTHONPATH has it in {folder}, but the sandbox is not given that: install it, or name "
                "the folder in a .pth file of that environment"
            )
    return ""
