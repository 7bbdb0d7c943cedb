"""Charts as plain SVG text, without a plotting library. One user unit is a pixel at full size."""
