"""reasoning-gym's families of tasks, without what their first import would cost and no run needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocstar.sandbox.child.lazy_import import install_lazy_import

if TYPE_CHECKING:
    from types import ModuleType


def reasoning_gym() -> ModuleType:
    """The package. Two of its families make boards with one that imports matplotlib: that waits for them."""
    install_lazy_import("cellpylib")
    import reasoning_gym

    module: ModuleType = reasoning_gym
    return module


def families() -> dict[str, tuple[type[Any], Any]]:
    """Class and configuration of every family, by its name."""
    found: dict[str, tuple[type[Any], Any]] = reasoning_gym().factory.DATASETS
    return found
