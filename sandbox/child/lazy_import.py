"""Imports that happen on first use: of packages that others import at once and that programs seldom need."""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

ASKED_OF_ALL = "__file__"
"""What `inspect` looks for in every module there is: that is no use of it."""


class _LazyModule(ModuleType):
    """Stands in `sys.modules` until an attribute is asked for; who holds it then is served by the real one.

    `importlib.util.LazyLoader` would not do: a second `import` of the module looks at its `__spec__`, and
    that alone makes it load.
    """

    def __getattr__(self, name: str) -> Any:
        if name == ASKED_OF_ALL:
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def install_lazy_import(name: str) -> None:
    """Has a top-level package imported when something of it is first used; not if it is there or missing."""
    if name not in sys.modules and (spec := importlib.util.find_spec(name)):
        sys.modules[name] = _LazyModule(name)
        sys.modules[name].__spec__ = spec
