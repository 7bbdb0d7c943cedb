"""The learner's side: recipe, algorithm, update, evaluation and the command line."""

from rocstar.engine.passive_threads import wait_asleep

wait_asleep()  # before any module of ours loads torch
