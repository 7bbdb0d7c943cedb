"""An endpoint over an engine that is open already: the turn loop of training behind OpenAI's protocol."""
