"""Several inference replicas behind one `Inference`, with the scheduler in front."""
