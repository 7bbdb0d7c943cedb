"""The tool service: the sandbox over HTTP, in a native dialect and in those of other servers.

    client --HTTP--> app.py (token, limits) --> dialects/*.py --> admission.py --> BatchSandbox

A dialect decodes a request to typed calls by pure functions; `Admission` admits or rejects them immediately.
The service has no queue: the sandbox queues calls that cannot run yet, and the number of calls in flight is
limited. See docs/reference/service.md.
"""
