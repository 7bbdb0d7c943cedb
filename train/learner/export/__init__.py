"""`rocstar export`: a checkpoint in a standard format.

CHECKPOINT | RUN ──source.py──> Source ──┬─ export.py: bfloat16 safetensors, template, generation, card
                                         └─ gguf_file.py: one GGUF file, the reverse of import_gguf.py
"""
