"""The tool service: the sandbox over HTTP, in a native dialect and in those of code-judge and SandboxFusion.

    client --HTTP--> app (auth, limits, admission) --> native | code_judge | sandbox_fusion --> BatchSandbox

A request is decoded to typed calls by pure functions (`decode*.py`), admitted or refused at once
(`calls.py`), and waits for nothing but its programs. Nothing is queued here: the sandbox behind holds what
cannot run yet, and the number of calls in flight bounds it. See docs/reference/service.md.
"""
