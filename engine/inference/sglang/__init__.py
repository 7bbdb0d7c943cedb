"""SGLang 0.5.23 behind the inference protocol, over the HTTP API of its real server.

    generate ─> SGLangEngine ─> Api (one aiohttp session) ─> server ─> Generation
    publish  ─> WeightSender: pause(retract) ─> disk | broadcast, flush ─> checksums ─> continue
    Replica  =  ServerProcess (supervised child) + SGLangEngine, restarted with the present weights

`api` speaks HTTP and turns every failure into an InferenceError; `engine` is the protocol; `weights` says
what is to be served and which checksums that gives; `publish` and `broadcast` make a server serve it;
`replica` keeps a server alive. `fake` is a server for tests, held against recordings of the real one.
Behaviour of the server that all this rests on, with figures: docs/reference/sglang.md.
"""
