"""The algorithm on one page each: plain numbers and tensors in, plain numbers and tensors out.

    rewards_N, penalties_N --roc--> kept G of N --advantages--> A of each --aggregate, loss--> scalar

Pure: stdlib and (only in `loss`) torch; no I/O, no clock, and every random generator is an argument.
`roc`, `advantages` and `aggregate` do not import torch, so a rollout process can use them.
"""
