"""SGLang 0.5.23 behind the inference protocol, over the HTTP API of its real server.

    generate ─> SGLangEngine ─> Api (one aiohttp session) ─> server ─> Generation
    publish  ─> WeightSender: pause(retract) ─> disk | broadcast, flush ─> checksums ─> continue
    Replica  =  ServerProcess (supervised child) + SGLangEngine, restarted with the present weights

`api` speaks HTTP and turns every failure into an InferenceError; `engine` is the protocol; `checksums`
computes the checksums of weights; `sender` and `broadcast` load weights into a server; `replica` restarts a
server. Facts about the server, with figures: docs/reference/sglang.md.
"""
