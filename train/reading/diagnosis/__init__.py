"""What is wrong with a run: alarms over its metrics, live and afterwards.

rows of metrics.jsonl ──> History ──every alarm of all_alarms.py──> Ringing ──> Watch:    console, metrics
evaluations/step_N ─────────┘                                          └──────> diagnose: `rocstar doctor RUN`
                                                         trajectories/step_N ──> witnesses
"""
