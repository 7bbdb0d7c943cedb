"""BFCL v3: which functions a policy calls, with which arguments, in one message and over several."""
