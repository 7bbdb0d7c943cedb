"""`rocstar VERB`: verbs.py is the table of verbs, dispatch.py runs one.

The work of a verb is in the package of its subject. No module here imports torch before the work begins.
"""

from rocstar.train.cli.dispatch import main as main
