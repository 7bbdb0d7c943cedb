# mypy: ignore-errors
# sender: thread_ids_by_session
# through: stat newfstatat statx access faccessat readlink chdir
# tries: which threads exist, looked up in /proc
# open: without namespaces of root
# closed-with: uid namespaces
# %% receiver
import os

receive_threads(lambda tid: os.path.exists(f"/proc/{tid}"))
