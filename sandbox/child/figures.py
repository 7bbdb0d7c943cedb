"""The matplotlib backend of a child: draws into memory; `plt.show()` displays.

MPLBACKEND names it. The zygote imports this module without matplotlib, so its classes are created on first
access.
"""

from typing import Any

from rocstar.sandbox.child import display


def _make() -> None:
    """Create both classes in the module's dict, which matplotlib reads."""
    from matplotlib.backend_bases import FigureManagerBase
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    class Manager(FigureManagerBase):
        @classmethod
        def pyplot_show(cls, *, block: bool | None = None) -> None:
            display.show_figures()

    class Canvas(FigureCanvasAgg):
        manager_class = Manager

    globals().update(FigureCanvas=Canvas, FigureManager=Manager)


def __getattr__(name: str) -> Any:
    if name in ("FigureCanvas", "FigureManager"):
        _make()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
