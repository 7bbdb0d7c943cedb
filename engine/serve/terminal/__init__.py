"""`rocstar chat`: a terminal in front of an endpoint. It knows the endpoint's protocol and nothing else."""
