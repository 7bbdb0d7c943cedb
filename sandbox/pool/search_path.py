"""PYTHONPATH, which zygotes do not get: one entry of it at most, the one that has rocstar itself.

The other entries may hold anything. A module that only they have is reported with the fix.
"""

import os
from importlib.machinery import PathFinder
from pathlib import Path

SANDBOX = Path(__file__).parents[1]
"""The package rocstar.sandbox of this process."""


def entries() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def own_entry() -> str:
    """The absolute entry of PYTHONPATH that rocstar was imported from; "" if there is none.

    An empty or relative entry means the current folder of whoever starts this process: it is never passed on.
    """
    for entry in filter(os.path.isabs, entries()):
        package = os.path.join(entry, "rocstar", SANDBOX.name)
        if os.path.exists(package) and os.path.samefile(package, SANDBOX):
            return os.path.normpath(entry)
    return ""


def hint_on(module: str) -> str:
    """What to add where a zygote lacks this module; nothing where PYTHONPATH has it neither."""
    for folder in entries():
        if module and PathFinder.find_spec(module.partition(".")[0], [folder]) is not None:
            where = f" into {own}, beside rocstar" if (own := own_entry()) else ""
            return (
                f"; PYTHONPATH has it in {folder}, but the sandbox is not given that: "
                f"install it{where}, or name the folder in a .pth file of that environment"
            )
    return ""
