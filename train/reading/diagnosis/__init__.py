"""Diagnosis of a run: alarms over its metrics, during and after the run.

rows of metrics.jsonl ──> History ──every alarm of alarms.toml──> Ringing ──> Watch:    console, metrics
evaluations/step_N ─────────┘                                          └──────> diagnose: `rocstar doctor RUN`
                                                         trajectories/step_N ──> witnesses
"""
