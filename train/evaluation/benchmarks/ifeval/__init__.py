"""IFEval: 25 kinds of instructions whose following a program can tell."""
