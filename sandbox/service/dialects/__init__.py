"""The dialects of the service. Each file has the models, the decoding and the handlers of one API."""
