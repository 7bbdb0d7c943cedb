"""The HTTP kit of all our servers: `sandbox serve`, `sandbox mcp`, `rocstar serve` and `rocstar view`.

    socket (listening.py) --> connections.py --> guard.py --> bodies.py --> handler --> responses.py

`errors.py` has the errors of requests, `routes.py` the routing, `openapi.py` the description of the routes,
`metrics.py` the Prometheus metrics, `drain.py` the shutdown.
"""
