"""llama.cpp's own server, which the package xllamacpp has: PYTHON llama_server.py MODEL.gguf PORT TOKENS"""

import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_ctx = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params.n_parallel = 2
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup = False
params.endpoint_slots = True
server = xllamacpp.Server(params)
print(server.listening_address, xllamacpp.__version__, flush=True)
signal.pause()
