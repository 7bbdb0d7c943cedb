"""Draws a figure once before forking: finds fonts and lays out text."""

import io

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

figure, axes = plt.subplots()
axes.plot(np.arange(3), [1.0, 4.0, 2.0], label="a")
axes.set_title("a title")
axes.legend()
figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
plt.close(figure)
vars(matplotlib.font_manager)["_get_font"].cache_clear()  # of open files, which a child does not have
