"""`rocstar VERB`: dispatch.py finds the verb; each has a file, with its options (`add`) and its work (`run`).

What a verb does lies in the room of its subject; here it is only asked for and printed. Nothing here imports
torch before the work begins.
"""

from rocstar.train.cli.dispatch import main as main
