"""Lazy imports of packages that other packages import immediately and that programs rarely use."""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

IGNORED_ATTRIBUTE = "__file__"
"""`inspect` reads this attribute of every module, which must not trigger the import."""


class _LazyModule(ModuleType):
    """A placeholder in `sys.modules` that imports the module on the first access to an attribute, and
    forwards later accesses.

    `importlib.util.LazyLoader` does not work here: a second `import` reads the module's `__spec__`, which
    loads it.
    """

    def __getattr__(self, name: str) -> Any:
        if name == IGNORED_ATTRIBUTE:
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def install_lazy_import(name: str) -> None:
    """Make the import of a top-level package lazy, unless it is already imported or not installed."""
    if name not in sys.modules and (spec := importlib.util.find_spec(name)):
        sys.modules[name] = _LazyModule(name)
        sys.modules[name].__spec__ = spec
