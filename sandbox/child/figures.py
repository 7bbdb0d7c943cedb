"""matplotlib's backend in a child: draws into memory, and `plt.show()` displays.

Named by MPLBACKEND. The zygote imports this module before matplotlib is there, so its classes are made when
matplotlib asks for them.
"""

from typing import Any

from rocstar.sandbox.child import display


def _make() -> None:
    """Both classes are the module's own from here on, for matplotlib looks into its dict."""
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
