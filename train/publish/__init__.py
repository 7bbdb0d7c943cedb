"""Publish the learner's weights to engines and servers."""
