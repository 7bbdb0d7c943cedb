"""`rocstar serve` and `rocstar chat`: a model on disk behind an endpoint, and a terminal in front of one."""
