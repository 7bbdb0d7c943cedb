"""BFCL v3: function calls of a policy, in one message and over several."""
