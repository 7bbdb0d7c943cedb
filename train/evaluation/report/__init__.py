"""An evaluation as one page."""
