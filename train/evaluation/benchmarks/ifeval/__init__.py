"""IFEval: 25 kinds of instructions that a program can check."""
