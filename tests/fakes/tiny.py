"""A model that is built in milliseconds."""

from rocstar.train.recipe.model_config import ScratchConfig

SCRATCH = ScratchConfig(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=64)
