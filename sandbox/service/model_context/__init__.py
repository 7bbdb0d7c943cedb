"""The sandbox as a server of the Model Context Protocol: tools for whatever program speaks it.

client --stdio or HTTP--> SDK (`mcp`) --> tools.py --> SessionTable, Admission --> SandboxPool
                           ^ guard.py: token, loopback        answer.py: results as content
"""
